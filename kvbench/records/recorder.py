"""Writing rows: one file per process, one write per prefill job."""

import os
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from kvbench.records.folder import Finished, ResultsFolder, create, create_exclusive, write_all
from kvbench.records.row import Row
from kvbench.support.errors import MissingFile
from kvbench.support.quantity import count_noun


class Recorder:
    """Appends rows to its own file under `rows/`, which the first append creates: a run without rows leaves nothing.

    All rows of a prefill job are one write of complete lines, which is then synced: a process that is killed at any
    moment leaves complete jobs and at most one torn line at the end.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = ResultsFolder(folder)
        self._descriptors: dict[str, int] = {}
        self._rows, self._checksums = 0, dict[str, int]()
        self._is_counted = True  # not while rows are written: an interrupt may come in between
        self.path: Path | None = None  # of the rows file, once there is one

    def append(self, rows: Sequence[Row], sidecars: Mapping[str, Sequence[str]] | None = None) -> None:
        """Write all rows of one prefill job, or none.

        `sidecars` maps other folders of the results folder ("kept") to lines about these rows. They go to a file of the
        same name as the rows file, before the rows: a row on disk has everything that belongs to it.

        Raises OSError if they cannot be written (disk full, quota), after removing the part that was written;
        MissingFile if the rows file is no longer where it was.
        """
        if not rows:
            return
        if self.path is None:
            self._descriptors["rows"], self.path = create_exclusive(self._folder.rows, ".jsonl")
            _sync_folder(self._folder.rows)
        lines = {**(sidecars or {}), "rows": [row.to_json() for row in rows]}
        files = {folder: "".join(f"{line}\n" for line in content).encode("ascii") for folder, content in lines.items()}
        sizes: dict[int, int] = {}
        self._is_counted = False
        try:
            for folder, data in files.items():
                if not data:
                    continue
                descriptor = self._open(folder, self.path.name)
                sizes[descriptor] = os.fstat(descriptor).st_size
                write_all(descriptor, data)
                os.fsync(descriptor)
        except OSError as error:
            for descriptor, size in sizes.items():
                os.ftruncate(descriptor, size)
            self._is_counted = True
            message = f"{error.strerror}: {count_noun(len(rows), 'row')} not recorded"
            raise OSError(error.errno, message, os.fspath(self.path)) from error
        if not self._in_place():
            raise MissingFile(
                f"{self.path} was removed, moved or replaced while rows were written to it: put it back, or run the "
                "same command again: it computes lost rows again"
            )
        self._rows += len(rows)
        for folder, data in files.items():
            self._checksums[folder] = zlib.crc32(data, self._checksums.get(folder, 0))
        self._is_counted = True

    def _in_place(self) -> bool:
        """Return whether the file that is open has the name that it was given."""
        try:
            return self.path is not None and os.path.samestat(self.path.stat(), os.fstat(self._descriptors["rows"]))
        except (FileNotFoundError, NotADirectoryError):
            return False

    def _open(self, folder: str, name: str) -> int:
        if folder not in self._descriptors:
            path = self._folder.path / folder
            self._descriptors[folder] = create(path / name)
            _sync_folder(path)
        return self._descriptors[folder]

    def close(self) -> None:
        """Note how many rows the file has, so that lost ones are found, and close it.

        Nothing is noted, as after a kill, if an interrupt came while rows were written.
        """
        if self.path is not None and self._descriptors and self._is_counted and self._in_place():
            checksums = {folder: f"{self._checksums.get(folder, 0):08x}" for folder in self._descriptors}
            finished = Finished(self._rows, checksums.pop("rows"), checksums)
            with suppress(OSError):  # as after a kill
                self._folder.write_finished(self.path.stem, finished)
        while self._descriptors:
            with suppress(OSError):  # all rows are synced
                os.close(self._descriptors.popitem()[1])

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _sync_folder(folder: Path) -> None:
    """Make the name of a new file survive a power cut. Some network file systems refuse; the rows are synced anyway."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
