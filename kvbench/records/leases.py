"""How processes share the work of a results folder: leases on prefill jobs, and rows that other processes add.

A prefill job is made by the owner of its lease: `leases/<job>.<generation>`, created exclusively, removed when the rows
of the job are recorded. The lease of the highest generation counts. The lease of a process that has stopped is neither
removed nor renamed: the next generation is created, and only one of several processes that try can create it.
docs/reference/results-folder.md argues why this is safe.

A lease has two lines: the name of its owner, and the machine, number and start of that process. If it ran on this
machine and is gone, its lease is free at once, whatever became of its file in `processes/`.
"""

import json
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from kvbench.records.folder import ResultsFolder, create, create_exclusive, link, write_all
from kvbench.records.lines import LONGEST, listed
from kvbench.records.processes import Heartbeat, Watch, awake, is_gone, signature
from kvbench.support.errors import naming

LEASES = "leases"
LONGEST_LEASE = 2**16
"""Bytes that are read of a lease, which has two short lines."""


@dataclass(frozen=True)
class Lease:
    """The right of this process to make a prefill job. breaks: how many our heartbeat had when it was created."""

    job: str
    generation: int
    breaks: int = field(default=0, compare=False)


class Leases:
    """The leases of one process. One ends when its owner's heartbeat is silent for `seconds`, the same for all."""

    def __init__(
        self, folder: ResultsFolder, heartbeat: Heartbeat, seconds: float, clock: Callable[[], float] = awake
    ) -> None:
        self._folder, self._heartbeat, self._seconds, self._clock = folder.path / LEASES, heartbeat, seconds, clock
        self._watch = Watch(folder, seconds, clock)

    def claim(self, job: str) -> Lease | None:
        """Return the lease on a job, or None while another process that may be alive holds it."""
        assert re.fullmatch(r"[0-9A-Za-z_-]+", job), f"not a name for a file: {job!r}"
        highest = self._highest(job)
        if highest is None:
            return self._create(job, 0)
        stopped = _owner(self._path(job, highest))
        return self._create_after(job, highest, stopped) if self._free(job, highest) else None

    def holder(self, job: str) -> str | None:
        """Return the process that may be alive and holds the job, or the file of a lease without a name; None: nobody
        does.
        """
        highest = self._highest(job)
        if highest is None or self._free(job, highest):
            return None
        path = self._path(job, highest)
        return _owner(path) or os.fspath(path)

    def sure(self, lease: Lease) -> bool:
        """Return whether nobody can have judged us stopped: our heartbeat was written recently, and without a break."""
        recent = self._clock() - self._heartbeat.last < self._seconds / 2
        return recent and lease.breaks == self._heartbeat.breaks

    def renew(self, lease: Lease) -> Lease | None:
        """Return the next generation of our own lease, or None if another process was faster."""
        return self._create_after(lease.job, lease.generation, self._heartbeat.start())

    def release(self, lease: Lease) -> None:
        """Remove the lease and those before it, the oldest first, so that the highest generation goes last."""
        for generation in sorted({*self._generations(lease.job), lease.generation}):
            path = self._path(lease.job, generation)
            if generation < lease.generation or (
                generation == lease.generation and _owner(path) == self._heartbeat.start()
            ):
                with suppress(IsADirectoryError, PermissionError):  # no lease, or of others: its rows are recorded
                    path.unlink(missing_ok=True)

    def _free(self, job: str, generation: int) -> bool:
        """Return whether the owner of a lease has ended, or has been silent for so long that its lease has."""
        path = self._path(job, generation)
        return _is_orphan(path) or self._watch.stopped(_owner(path) or path.name)

    def _create_after(self, job: str, generation: int, owner: str) -> Lease | None:
        """Return the lease that follows one of `owner`. That one must still be there: otherwise the job was made
        meanwhile.
        """
        lease = self._create(job, generation + 1)
        if lease is not None and _owner(self._path(job, generation)) != owner:
            self._path(job, lease.generation).unlink(missing_ok=True)
            return None
        return lease

    def _create(self, job: str, generation: int) -> Lease | None:
        """Return the lease, or None if it exists.

        It is a second name of a file that names its owner: others never see it empty. Where there are no hard links it
        is created and then written, and names nobody if its owner dies in between.
        """
        owner, breaks = self._heartbeat.start(), self._heartbeat.breaks
        path = self._path(job, generation)
        try:
            link(self._heartbeat.signature_file, path)
        except OSError as error:  # a network disk may have made it all the same
            is_ours = _owner(path) == owner
            if not is_ours and (isinstance(error, FileExistsError) or not self._write(path)):
                return None
        return Lease(job, generation, breaks)

    def _write(self, path: Path) -> bool:
        """Create a lease and write who owns it; False if it exists."""
        assert self._heartbeat.process is not None
        try:
            descriptor = create(path)
        except FileExistsError:
            return False
        try:
            with naming(path):
                try:
                    write_all(descriptor, signature(self._heartbeat.process))
                finally:
                    os.close(descriptor)
        except OSError:  # a full disk: others would wait for the owner of an empty file
            path.unlink(missing_ok=True)
            raise
        return True

    def _path(self, job: str, generation: int) -> Path:
        return self._folder / f"{job}.{generation}"

    def _highest(self, job: str) -> int | None:
        return max(self._generations(job), default=None)

    def _generations(self, job: str) -> list[int]:
        """Return those in a listing. An outdated listing is safe: creating a file that exists fails."""
        matches = (
            re.fullmatch(r"0|[1-9][0-9]{0,8}", path.suffix[1:]) for path in listed(self._folder) if path.stem == job
        )
        return [int(match[0]) for match in matches if match]


def _owner(path: Path) -> str:
    """Return the name in a lease's file; empty if the lease was released meanwhile, or is no file, such as a FIFO."""
    return (_lines(path) or [""])[0].strip()


def _is_orphan(path: Path) -> bool:
    """Return whether the process that a lease's second line names ran here and is gone; not if there is no such
    line.
    """
    try:
        machine, pid, start = json.loads(_lines(path)[1])
        return is_gone(machine, pid, start)
    except (IndexError, ValueError, TypeError, RecursionError):
        return False


def _lines(path: Path) -> list[str]:
    try:
        if not path.is_file():
            return []
        with path.open("rb") as file:
            return file.read(LONGEST_LEASE).decode("ascii", "replace").splitlines()
    except OSError:
        return []


def lease_owners(folder: ResultsFolder) -> list[str]:
    """Return the name of the process that holds each lease; empty if it cannot be read."""
    return [_owner(path) for path in listed(folder.path / LEASES)]


LOOK = ".look"
"""The suffix of a file that forces a new listing; nobody reads it."""
Places = Mapping[str, int]
"""How far each rows file was read, in bytes, by file name."""


def file_sizes(folder: str | os.PathLike[str]) -> Places:
    """Return the sizes of the rows files. Taken before rows are read, they miss no row that is added later."""
    return {path.name: path.stat().st_size for path in listed(ResultsFolder(folder).rows, ".jsonl")}


class Arrivals:
    """The rows that any process recorded after `since`. A line counts once its newline is written."""

    def __init__(self, folder: ResultsFolder, since: Places) -> None:
        self._rows, self._read = folder.rows, dict(since)
        self.recorded: set[tuple[str, int]] = set()

    def poll(self, skip: Path | None = None) -> None:
        """Read what was added, except to the file `skip`.

        A network file system may show files of other machines late. Creating a file in the folder forces a new listing,
        and opening a file forces a check of its length.
        """
        if not self._rows.is_dir():
            return
        descriptor, probe = create_exclusive(self._rows, LOOK)
        with suppress(OSError):  # it is empty
            os.close(descriptor)
        with suppress(OSError):  # tried again below
            probe.unlink()
        for path in listed(self._rows):
            if path.suffix == LOOK:  # one that could not be removed, or that another process is done with
                path.unlink(missing_ok=True)
            if path.suffix != ".jsonl" or (skip is not None and path.name == skip.name) or not path.is_file():
                continue
            with path.open("rb") as file:
                file.seek(self._read.get(path.name, 0))
                lines, newline, _ = file.read(LONGEST).rpartition(b"\n")  # the rest at the next look
            self._read[path.name] = self._read.get(path.name, 0) + len(lines + newline)
            for line in lines.splitlines():
                with suppress(ValueError, KeyError, TypeError, RecursionError):  # `read_rows` reports it
                    data = json.loads(line)
                    self.recorded.add((data["cell"], data["sample"]))
