"""The reading end: all rows of a results folder, each (cell, sample) once."""

import os
import warnings
from collections.abc import Callable, Iterable

from kvbench.records.folder import ResultsFolder
from kvbench.records.lines import read_lines
from kvbench.records.row import Row


def read_rows(folder: str | os.PathLike[str], warn: Callable[[str], None] = warnings.warn) -> list[Row]:
    """The rows of every file under ``rows/``, files by name (that is, by time), each (cell, sample) once.

    A sample recorded twice: its first row without an error wins; with errors only, the last. The place in the list is
    that of the first. A folder that does not exist has no rows.

    A last line that is torn (no newline, or no JSON) is dropped and told to ``warn``: its process was killed.
    Raises ValueError naming file and line for any other line that is no row.
    """
    best: dict[tuple[str, int], Row] = {}
    for path in sorted(ResultsFolder(folder).rows.glob("*.jsonl")):
        for row in read_lines(path, Row.from_json, "a row", warn):
            known = best.get((row.cell, row.sample))
            if known is None or known.error is not None:
                best[row.cell, row.sample] = row
    return list(best.values())


def done(rows: Iterable[Row], retry_errors: bool = False) -> set[tuple[str, int]]:
    """The (cell, sample) pairs that need no second run; those with an error too, unless errors are retried."""
    return {(row.cell, row.sample) for row in rows if not (retry_errors and row.error is not None)}
