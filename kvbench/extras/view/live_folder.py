"""A results folder that may be written while it is shown: its rows and cells, read again when its files have changed.

What cannot be read is a note on the page and ends nothing: a folder may have no rows yet, or be half copied.
"""

import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from kvbench.extras.view.page import cells_data
from kvbench.records.columns import empty_table
from kvbench.records.lines import listed
from kvbench.report.rows import describer, load_table
from kvbench.report.tables.summary import NEEDED, summaries
from kvbench.support.errors import MissingFile, UserError

COLUMNS = tuple(dict.fromkeys((*NEEDED, "prediction", "prompt_sha256", "kept_sha256", "environment", "code")))
"""What is kept in memory of each row: what its sample shows, and what the summary of its cell needs."""
PATIENCE = 10.0
"""A folder is left alone for so many times as long as its last reading took: a large one is not read all the time."""


@dataclass(frozen=True)
class Snapshot:
    """A folder at one time. `version`: another one whenever rows or notes differ. notes: what reading them told."""

    version: str
    rows: pa.Table
    cells: tuple[dict[str, Any], ...] = ()
    notes: tuple[str, ...] = ()


class LiveFolder:
    """A results folder, or a Parquet file of rows, as it was last read; several threads may ask for it."""

    def __init__(self, source: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.source = source
        self._clock, self._lock = clock, threading.Lock()
        self._state: tuple[object, ...] | None = None
        self._read_again_at = 0.0
        self._snapshot = Snapshot("", empty_table(COLUMNS))

    @property
    def snapshot(self) -> Snapshot:
        """The rows of the last reading."""
        return self._snapshot

    def refresh(self) -> None:
        """Read again if files have changed, unless another thread does, or the last reading took long and is new."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            started = self._clock()
            if started >= self._read_again_at and (state := tuple(self._files())) != self._state:
                self._snapshot, self._state = self._read(hashlib.sha256(repr(state).encode()).hexdigest()[:16]), state
                ended = self._clock()
                self._read_again_at = ended + PATIENCE * (ended - started)
        finally:
            self._lock.release()

    def _files(self) -> Iterator[tuple[str, int, int]]:
        """Names, sizes and times of the files of rows: what is beside rows is written before them."""
        path = Path(self.source)
        try:
            files = [path] if path.suffix == ".parquet" else listed(path / "rows", ".jsonl")
        except OSError as error:  # which reading names
            files = [Path(str(error))]
        for file in files:
            try:
                status = file.stat()
            except OSError:  # removed meanwhile, or a broken link, which reading names
                continue
            yield file.name, status.st_size, status.st_mtime_ns

    def _read(self, version: str) -> Snapshot:
        notes: list[str] = []
        try:
            rows = load_table(self.source, COLUMNS, notes.append)
            return Snapshot(version, rows, tuple(cells_data(summaries(rows), describer(self.source))), tuple(notes))
        except (UserError, MissingFile, OSError) as error:
            return replace(self._snapshot, version=version, notes=(str(error),))
