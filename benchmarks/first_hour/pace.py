"""Rows an hour of a sweep, from its first recorded rows on: what loads a model and compiles kernels is not counted."""

import time
from pathlib import Path
from threading import Event, Thread
from typing import Self

LOOKS_EVERY = 0.02


class Pace:
    """Looks for the first rows of a results folder while a command writes them."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._first, self._ended = folder, (0, 0.0), Event()
        self._thread = Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def rows_per_hour(self) -> float | None:
        """Rows that followed the first ones, by the time from those to the last; None where none followed."""
        (first, since), (rows, until) = self._first, self._rows()
        return round(3600 * (rows - first) / (until - since), 1) if first and rows > first and until > since else None

    def _look(self) -> None:
        while not self._first[0] and not self._ended.wait(LOOKS_EVERY):
            rows, _ = self._rows()
            self._first = rows, time.time()

    def _rows(self) -> tuple[int, float]:
        """Rows, and when the last of them was written."""
        paths = sorted(self._folder.glob("rows/*.jsonl"))
        return sum(path.read_bytes().count(b"\n") for path in paths), max(
            (path.stat().st_mtime for path in paths), default=0.0
        )
