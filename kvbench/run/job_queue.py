"""Which prefill jobs of a plan this process makes, while others may work on the same folder."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from kvbench.records.folder import ResultsFolder
from kvbench.records.leases import Arrivals, Lease, Leases, Places, file_sizes
from kvbench.records.processes import Heartbeat, read_processes
from kvbench.records.recorder import Recorder
from kvbench.records.row import Row
from kvbench.run.plan import Plan, PrefillGroup, PrefillJob
from kvbench.run.rows import JobResult
from kvbench.support.errors import StopRequested
from kvbench.support.quantity import shortened

BEATS = 12
"""Heartbeats in the time after which a process without one counts as stopped."""
LONGEST_PAUSE_SECONDS = 2.0
COUNT_SECONDS = 30.0
"""Time for which a count of the processes of a folder is used."""


@dataclass(frozen=True)
class RunContext:
    """Surroundings of a run: how it shares its folder, and who may stop it.

    lease_seconds: a lease ends after so long without a heartbeat. since: how far rows were read when the run was
    planned; None: as it starts. replaced: the column `replaces` of new rows, by (cell, sample). devices: see `Process`.
    cells: samples per cell of the full sweep, for `kvbench status`. stop: says why to stop, or None. joules: reads the
    energy of its devices, if they report it. tell: is told for whom the run waits.
    """

    lease_seconds: float = 180.0
    since: Places | None = None
    replaced: Mapping[tuple[str, int], int] = field(default_factory=dict)
    devices: int | float = 1
    command: tuple[str, ...] = ()
    cells: Mapping[str, int] | None = None
    stop: Callable[[], str | None] = lambda: None
    joules: Callable[[], float] | None = None
    tell: Callable[[str], None] = lambda text: None


class JobQueue:
    """Jobs are taken, made, recorded and released; nothing is written before the first is taken.

    Several may be taken at a time, all of one group.
    """

    def __init__(self, results: ResultsFolder, run_context: RunContext | None = None) -> None:
        run_context = run_context or RunContext()
        since = file_sizes(results) if run_context.since is None else run_context.since
        self._results, self._recorder, self._run_context = results, Recorder(results), run_context
        self._heartbeat = Heartbeat(
            results,
            run_context.lease_seconds / BEATS,
            run_context.lease_seconds,
            run_context.devices,
            run_context.command,
            joules=run_context.joules,
        )
        self._leases = Leases(results, self._heartbeat, run_context.lease_seconds)
        self._arrivals = Arrivals(results, since)
        self._taken: dict[int, tuple[PrefillGroup, PrefillJob, Lease]] = {}
        self._counted, self._others = -math.inf, 0

    def share(self, left: int) -> int:
        """Return how many of `left` jobs to take together: all if no other process works on the folder, otherwise half
        of an equal part, so that none waits long for the last.
        """
        if time.monotonic() >= self._counted + COUNT_SECONDS:
            self._counted = time.monotonic()
            self._others = sum(not process.has_ended for process in read_processes(self._results)) - 1
        return left if self._others < 1 else max(1, left // (2 * (1 + self._others)))

    def take(self, group: PrefillGroup, job: PrefillJob) -> PrefillJob | None:
        """Take a job and return what is missing of it; None if nothing is, or another holds it. Raises as `check`."""
        self.check()
        if not job.without(self._arrivals.recorded).missing:
            return None
        lease = self._leases.claim(_name(group, job))
        if lease is None:
            return None
        self._taken[job.key] = group, job, lease
        remaining = self._remaining(job)
        if remaining.missing:
            return remaining
        self._release(job.key)
        return None

    def record(self, result: JobResult) -> JobResult | None:
        """Record and release the taken job of a result. None, and nothing recorded, if another process took over.

        Raises MissingFile, and nothing is recorded, if the data of the job has changed since its cells were named.
        """
        key = result.job.key
        group, job, lease = self._taken[key]
        group.check_unchanged()
        if not self._leases.sure(lease):  # this machine slept, or could not write
            renewed = self._leases.renew(lease)
            if renewed is None:
                del self._taken[key]
                return None
            self._taken[key] = group, job, renewed
            result = result.only(self._remaining(job).places)
        result = replace(result, rows=[self._replacing(row) for row in result.rows])
        self._recorder.append(result.rows, result.sidecars)
        self._arrivals.recorded.update((row.cell, row.sample) for row in result.rows)
        self._heartbeat.count(len(result.rows), sum(row.error is not None for row in result.rows))
        self._release(key)
        return result

    def request(self) -> None:
        """Record what the command requests, unless it is recorded. A run whose model cannot answer has not called it:
        reports would miss its rows for ever.
        """
        if self._run_context.cells is not None:
            self._results.write_sweep(self._run_context.command, self._run_context.cells)

    def loaded(self, model: str, seconds: float) -> None:
        """Say of this process how long a model took to load."""
        self._heartbeat.loaded(model, seconds)

    def _replacing(self, row: Row) -> Row:
        """Return a row that counts instead of the rows that the run found of its sample."""
        replaces = self._run_context.replaced.get((row.cell, row.sample))
        return row if replaces is None else replace(row, replaces=replaces)

    def left(self, plan: Plan) -> Plan:
        """Return the part of a plan that nobody has recorded yet."""
        self._arrivals.poll(self._recorder.path)
        recorded = self._arrivals.recorded
        if not recorded:
            return plan
        return plan.with_jobs(
            lambda group: [remaining for job in group.jobs if (remaining := job.without(recorded)).missing]
        )

    def wait(self, plan: Plan) -> Plan:
        """Wait until others have recorded what is left, or given up some of it: that is returned. Raises as `check`."""
        pause, known_holders = min(LONGEST_PAUSE_SECONDS, self._run_context.lease_seconds / BEATS), set[str]()
        while (plan := self.left(plan)).rows_to_do:
            holders = set[str]()
            for name in (_name(group, job) for group in plan.groups for job in group.jobs):
                holder = self._leases.holder(name)
                if holder is None:
                    return plan
                holders.add(holder)
            if new := sorted(holders - known_holders):
                known_holders.update(new)
                self._run_context.tell(
                    f"waiting for {plan.rows_to_do} rows of {shortened(new, 3)}; prompts of a process that is silent "
                    f"for {self._run_context.lease_seconds:g} s are taken over"
                )
            deadline = time.monotonic() + pause
            while time.monotonic() < deadline:
                self.check()
                time.sleep(min(0.1, pause))
        return plan

    def check(self) -> None:
        """Raise StopRequested if the run was asked to stop."""
        reason = self._run_context.stop() or ("kvbench cancel" if self._heartbeat.cancelled else None)
        if reason is not None:
            raise StopRequested(reason)

    def _remaining(self, job: PrefillJob) -> PrefillJob:
        """Return what is missing of a job now that it is ours: its last owner has recorded before giving it up."""
        self._arrivals.poll(self._recorder.path)
        return job.without(self._arrivals.recorded)

    def _release(self, key: int) -> None:
        self._leases.release(self._taken.pop(key)[2])

    def __enter__(self) -> "JobQueue":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        try:
            for key in list(self._taken):
                self._release(key)
            if kind is not None and issubclass(kind, StopRequested):
                self.request()  # it is to go on
        finally:
            self._heartbeat.end("finished" if kind is None else f"{kind.__name__}: {error}"[:200])
            self._recorder.close()


def _name(group: PrefillGroup, job: PrefillJob) -> str:
    return f"{group.key}-{job.key}"
