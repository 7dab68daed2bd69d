"""Which units of a plan this process makes, while others may work on the same folder."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import TracebackType

from kvbench.records import Arrivals, Heartbeat, Lease, Leases, Places, Recorder, ResultsFolder, Stopped
from kvbench.run.make_rows import Made
from kvbench.run.plan import Plan, PrefillGroup, PrefillJob

BEATS = 12
"""Heartbeats in the time after which a process without one is thought to have stopped."""
LONGEST_LOOK_SECONDS = 2.0


@dataclass(frozen=True)
class Sharing:
    """How a run shares its folder. Seconds without a heartbeat that end a lease; what was recorded when it was planned
    (None: as the run starts); GPUs that it holds, at least 1; its command line; samples by cell of the whole sweep, for
    those who ask how far it is; who asks it to stop, if somebody does; what reads the energy of its devices, if they
    tell it.
    """

    seconds: float = 180.0
    since: Places | None = None
    devices: int = 1
    command: tuple[str, ...] = ()
    cells: Mapping[str, int] | None = None
    stop: Callable[[], str | None] = lambda: None
    joules: Callable[[], float] | None = None


class Claims:
    """Units are claimed one at a time, made, recorded and released; nothing is written before the first claim."""

    def __init__(self, results: ResultsFolder, sharing: Sharing, since: Places) -> None:
        self._recorder, self._sharing = Recorder(results), sharing
        self._heartbeat = Heartbeat(
            results, sharing.seconds / BEATS, sharing.seconds, sharing.devices, sharing.command, joules=sharing.joules
        )
        self._leases = Leases(results, self._heartbeat, sharing.seconds)
        self._arrivals = Arrivals(results, since)
        self._held: tuple[PrefillJob, Lease] | None = None

    def take(self, group: PrefillGroup, unit: PrefillJob) -> PrefillJob | None:
        """What is missing of a unit that is now ours; None where nothing is, or where another process has it.

        Raises Stopped when the run was asked to stop.
        """
        self.check()
        assert self._held is None, "one unit at a time"
        if not unit.without(self._arrivals.recorded).missing:
            return None
        lease = self._leases.claim(_name(group, unit))
        if lease is None:
            return None
        self._held = unit, lease
        left = self._left(unit)
        if not left.missing:
            self._release()
            return None
        return left

    def record(self, made: Made) -> Made | None:
        """Record and release the unit that was taken. None, and nothing recorded, where it was taken from us."""
        assert self._held is not None
        unit, lease = self._held
        if not self._leases.sure(lease):  # this machine slept, or could not write
            renewed = self._leases.renew(lease)
            if renewed is None:
                self._held = None
                return None
            self._held = unit, renewed
            missing = self._left(unit).missing
            made = made.only({(cell.id, sample) for sample, cells in missing.items() for cell in cells})
        self._recorder.append(made.rows, made.beside)
        self._arrivals.recorded.update((row.cell, row.sample) for row in made.rows)
        self._heartbeat.count(len(made.rows), sum(row.error is not None for row in made.rows))
        self._release()
        return made

    def left(self, plan: Plan) -> Plan:
        """What of a plan nobody has recorded yet."""
        self._arrivals.look(self._recorder.path)
        recorded = self._arrivals.recorded
        groups = []
        for group in plan.groups:
            units = (unit.without(recorded) for unit in group.units)
            groups.append(replace(group, units=tuple(unit for unit in units if unit.missing)))
        return Plan(tuple(groups))

    def wait(self, plan: Plan) -> Plan:
        """Until others have recorded what is left, or given some of it up; returns what is left then.

        Raises Stopped when the run was asked to stop.
        """
        pause = min(LONGEST_LOOK_SECONDS, self._sharing.seconds / BEATS)
        while (plan := self.left(plan)).rows_to_do:
            if any(not self._leases.taken(_name(group, unit)) for group in plan.groups for unit in group.units):
                break
            until = time.monotonic() + pause
            while time.monotonic() < until:
                self.check()
                time.sleep(min(0.1, pause))
        return plan

    def check(self) -> None:
        """Raise Stopped when the run was asked to stop."""
        why = self._sharing.stop() or ("kvbench cancel" if self._heartbeat.cancelled else None)
        if why is not None:
            raise Stopped(why)

    def _left(self, unit: PrefillJob) -> PrefillJob:
        """What is missing of a unit now that it is ours: who had it before has recorded before giving it up."""
        self._arrivals.look(self._recorder.path)
        return unit.without(self._arrivals.recorded)

    def _release(self) -> None:
        if self._held is not None:
            self._leases.release(self._held[1])
            self._held = None

    def __enter__(self) -> "Claims":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType) -> None:
        try:
            self._release()
        finally:
            self._heartbeat.end("finished" if kind is None else f"{kind.__name__}: {error}"[:200])
            self._recorder.close()


def _name(group: PrefillGroup, unit: PrefillJob) -> str:
    return f"{group.key}-{unit.key}"
