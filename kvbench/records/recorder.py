"""The writing end of a rows file. One process, one file; one unit, one write."""

import errno
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from kvbench.records.folder import ResultsFolder, create_exclusive
from kvbench.records.row import Row


class Recorder:
    """Appends rows to a file of its own under ``rows/``, made by the first append: a run without rows leaves nothing.

    A unit (all rows of one sample and one prefill group) goes down in one write of whole lines and is then synced, so
    that a process killed at any moment leaves whole units and at most one torn line at the end.

        with Recorder("results/runs") as recorder:
            recorder.append(rows_of_sample_0)
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = ResultsFolder(folder)
        self._descriptors: dict[str, int] = {}
        self.path: Path | None = None  # of the rows file, once there is one

    def append(self, rows: Sequence[Row], beside: Mapping[str, Sequence[str]] | None = None) -> None:
        """Write the rows of one unit, whole or not at all.

        `beside` maps other folders of the results folder ("kept") to lines about these rows, which go to files of the
        same name as the rows file. They are written first: a row on disk has what belongs to it.

        Raises OSError when they cannot be written (disk full, quota), after taking back what was written of them.
        """
        if not rows:
            return
        if self.path is None:
            self._descriptors["rows"], self.path = create_exclusive(self._folder.rows, ".jsonl")
            _sync_folder(self._folder.rows)
        parts = {**(beside or {}), "rows": [row.to_json() for row in rows]}
        sizes: dict[int, int] = {}
        try:
            for room, lines in parts.items():
                if not lines:
                    continue
                descriptor = self._open(room, self.path.name)
                sizes[descriptor] = os.fstat(descriptor).st_size
                _write("".join(f"{line}\n" for line in lines).encode("ascii"), descriptor)
        except OSError as error:
            for descriptor, size in sizes.items():
                os.ftruncate(descriptor, size)
            message = f"{error.strerror}: {len(rows)} rows not recorded; make room and run again, the run resumes"
            raise OSError(error.errno, message, os.fspath(self.path)) from error

    def _open(self, room: str, name: str) -> int:
        """The descriptor of a room's file; the name of the rows file is this process's alone."""
        if room not in self._descriptors:
            folder = self._folder.path / room
            folder.mkdir(parents=True, exist_ok=True)
            self._descriptors[room] = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o666)
            _sync_folder(folder)
        return self._descriptors[room]

    def close(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _write(data: bytes, descriptor: int) -> None:
    """All of it, down to the disk. Raises OSError, also when only a part went down."""
    if os.write(descriptor, data) != len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.fsync(descriptor)


def _sync_folder(folder: Path) -> None:
    """Make a new file's name survive a power cut, where the system can sync folders."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError:
        pass  # some network file systems refuse; the rows themselves are synced
    finally:
        os.close(descriptor)
