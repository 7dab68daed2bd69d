"""Who makes which unit: `leases/<unit>.<generation>`, made exclusively, gone when the unit is recorded.

A unit belongs to the maker of its lease of the highest generation. A lease whose process has stopped is not removed
and not renamed: the next generation is made, which one of all that try can do. docs/sweeps.md argues why this holds.
"""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from kvbench.records.folder import ResultsFolder
from kvbench.records.processes import Heartbeat, Watch, awake

ROOM = "leases"


@dataclass(frozen=True)
class Lease:
    """A unit that this process may make. Leases of earlier generations are of processes that have stopped.

    breaks: how often our heart had been silent for long before the lease was made.
    """

    unit: str
    generation: int
    breaks: int = field(default=0, compare=False)


class Leases:
    """The leases of one process. `seconds` without a heartbeat end the leases of another; all processes of a folder
    must mean the same by it.
    """

    def __init__(
        self, folder: ResultsFolder, heartbeat: Heartbeat, seconds: float, clock: Callable[[], float] = awake
    ) -> None:
        self._room, self._heartbeat, self._seconds, self._clock = folder.path / ROOM, heartbeat, seconds, clock
        self._watch = Watch(folder, seconds, clock)

    def claim(self, unit: str) -> Lease | None:
        """The unit's lease, or None while another process that may live has it.

        Raises OSError where no file can be made (disk full, rights).
        """
        assert re.fullmatch(r"[0-9A-Za-z_-]+", unit), f"not a name for a file: {unit!r}"
        last = self._highest(unit)
        if last is None:
            return self._make(unit, 0)
        stopped = self._owner(self._path(unit, last))
        return self._after(unit, last, stopped) if self._free(unit, last) else None

    def taken(self, unit: str) -> bool:
        """Whether another process that may live has the unit."""
        last = self._highest(unit)
        return last is not None and not self._free(unit, last)

    def sure(self, lease: Lease) -> bool:
        """Whether our heartbeat was heard so lately, and without a break, that nobody can have thought us stopped."""
        lately = self._clock() - self._heartbeat.last < self._seconds / 2
        return lately and lease.breaks == self._heartbeat.breaks

    def renew(self, lease: Lease) -> Lease | None:
        """The next generation of a lease of ours, or None where another process was faster."""
        return self._after(lease.unit, lease.generation, self._heartbeat.start())

    def release(self, lease: Lease) -> None:
        """Remove the lease and those before it, the oldest first: the highest generation stands to the end."""
        for generation in range(lease.generation + 1):
            path = self._path(lease.unit, generation)
            if generation < lease.generation or self._owner(path) == self._heartbeat.start():
                path.unlink(missing_ok=True)

    def _free(self, unit: str, generation: int) -> bool:
        """Whether the process that made a lease has stopped, or says nothing for so long that it must have."""
        path = self._path(unit, generation)
        return self._watch.stopped(self._owner(path) or path.name)

    def _after(self, unit: str, generation: int, owner: str) -> Lease | None:
        """The lease that follows one of `owner`, which must still be there: else the unit was made meanwhile."""
        lease = self._make(unit, generation + 1)
        if lease is not None and self._owner(self._path(unit, generation)) != owner:
            self._path(unit, lease.generation).unlink(missing_ok=True)
            return None
        return lease

    def _make(self, unit: str, generation: int) -> Lease | None:
        """The lease, unless it is there already. It names its owner, or nobody where that died in between."""
        owner, breaks = self._heartbeat.start(), self._heartbeat.breaks
        self._room.mkdir(parents=True, exist_ok=True)
        path = self._path(unit, generation)
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            return None
        try:
            os.write(descriptor, owner.encode())
        finally:
            os.close(descriptor)
        return Lease(unit, generation, breaks)

    def _path(self, unit: str, generation: int) -> Path:
        return self._room / f"{unit}.{generation}"

    def _owner(self, path: Path) -> str:
        try:
            return path.read_text("ascii", "replace").strip()
        except OSError:
            return ""

    def _highest(self, unit: str) -> int | None:
        """The highest generation that a listing shows. One that comes too late is safe: making it again fails."""
        found = [path.name for path in self._room.glob(f"{unit}.*")] if self._room.is_dir() else []
        numbers = [int(number) for name in found if (number := name.rpartition(".")[2]).isdigit()]
        return max(numbers, default=None)
