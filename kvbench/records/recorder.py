"""The writing end of a rows file. One process, one file; one unit, one write."""

import errno
import os
from collections.abc import Sequence
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
        self._descriptor: int | None = None
        self.path: Path | None = None  # of the rows file, once there is one

    def append(self, rows: Sequence[Row]) -> None:
        """Write the rows of one unit, whole or not at all.

        Raises OSError when they cannot be written (disk full, quota), after taking back what was written of them.
        """
        if not rows:
            return
        data = "".join(row.to_json() + "\n" for row in rows).encode("ascii")
        if self._descriptor is None:
            self._descriptor, self.path = create_exclusive(self._folder.rows, ".jsonl")
            _sync_folder(self._folder.rows)
        before = os.fstat(self._descriptor).st_size
        try:
            if os.write(self._descriptor, data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(self._descriptor)
        except OSError as error:
            os.ftruncate(self._descriptor, before)
            message = f"{error.strerror}: {len(rows)} rows not recorded; make room and run again, the run resumes"
            raise OSError(error.errno, message, os.fspath(self.path or "")) from error

    def close(self) -> None:
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


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
