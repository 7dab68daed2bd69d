"""The reading end: all rows of a results folder, each (cell, sample) once."""

import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from kvbench.records.folder import ResultsFolder
from kvbench.records.row import Row


def read_rows(folder: str | os.PathLike[str], warn: Callable[[str], None] = warnings.warn) -> list[Row]:
    """The rows of every file under ``rows/``, files by name (that is, by time), each (cell, sample) once.

    A sample recorded twice: its first row without an error wins; with errors only, the last. The place in the list is
    that of the first. A folder that does not exist has no rows.

    A last line that is torn (no newline, or no row) is dropped and told to ``warn``: its process was killed.
    Raises ValueError naming file and line for a broken line anywhere else.
    """
    best: dict[tuple[str, int], Row] = {}
    for path in sorted(ResultsFolder(folder).rows.glob("*.jsonl")):
        for row in _rows_of(path, warn):
            known = best.get((row.cell, row.sample))
            if known is None or known.error is not None:
                best[row.cell, row.sample] = row
    return list(best.values())


def done(rows: Iterable[Row], retry_errors: bool = False) -> set[tuple[str, int]]:
    """The (cell, sample) pairs that need no second run; those with an error too, unless errors are retried."""
    return {(row.cell, row.sample) for row in rows if not (retry_errors and row.error is not None)}


def _rows_of(path: Path, warn: Callable[[str], None]) -> Iterator[Row]:
    *lines, rest = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        try:
            row = Row.from_json(line)
        except ValueError as error:  # also json.JSONDecodeError and UnicodeDecodeError
            if number == len(lines) and not rest:
                warn(f"{path}:{number}: torn last line dropped ({error}); the run that wrote it was cut off")
                return
            raise ValueError(
                f"{path}:{number}: not a row: {error}; mend or remove the line, or move the file away"
            ) from error
        yield row
    if rest:
        warn(f"{path}:{len(lines) + 1}: torn last line dropped (no newline); the run that wrote it was cut off")
