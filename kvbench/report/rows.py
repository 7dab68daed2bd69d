"""The rows that a report tells of, in a results folder, a Parquet file or a frame, selected and checked.

`kvbench.records.rows` reads them. What a reader of the report should know of its rows goes to ``warn``.
"""

import os
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from kvbench.records import COLUMNS, ResultsFolder, Row
from kvbench.records.lines import Warn, check_name
from kvbench.records.rows import (
    DECIDING,
    Describe,
    check_identical,
    counting,
    describer_of,
    fetched,
    is_parquet,
    recorded_again,
    rows_of,
    whole_rows,
    without,
)
from kvbench.report.frames import Source, place_of, source_name, table_of_frame
from kvbench.report.row_warnings import ReadCode, tell_altered, tell_codes, tell_missing
from kvbench.report.selection import NothingSelected, Where, check_where, select
from kvbench.support.errors import MissingFile
from kvbench.support.quantity import count_noun


def load(source: Source, warn: Warn = warnings.warn, where: Where | None = None) -> list[Row]:
    """Return the rows of `load_table`, in its order, with all their columns as recorded, or as the frame has them."""
    table = load_table(source, COLUMNS, warn, where)
    return fetched(table) if isinstance(source, (str, os.PathLike)) else rows_of(table)


def load_table(
    source: Source,
    columns: Sequence[str] = COLUMNS,
    warn: Warn = warnings.warn,
    where: Where | None = None,
) -> pa.Table:
    """Return the rows of a results folder, a Parquet file or a frame as columns, each (cell, sample) once, files by
    name.

    The table has ``columns``, the columns of ``where``, ``cell sample error code replaces``, and ``file`` and ``line``,
    the place of a row. ``where``: see `kvbench.report.selection.select`. Damaged rows and torn last lines, which are
    left out, unknown columns, dropped duplicates, rows that are missing and rows of several versions of the code go to
    ``warn``.

    Raises FileNotFoundError if there are no rows, NothingSelected if none is selected, ValueError naming file and line
    for a row of a later kvbench, for two rows of one sample that contradict each other, and as
    `kvbench.report.frames.table_of_frame`.
    """
    where = where or {}
    check_where(where)
    read = ("cell", "sample", *DECIDING, *columns, *where)
    path, describe = None, describer(source)
    if isinstance(source, (str, os.PathLike)):
        check_name(path := Path(source))
        rows = whole_rows(path, read, warn, describe)
    else:
        rows = table_of_frame(source, read)
    if not rows.num_rows:
        raise NothingSelected("the frame has no rows") if path is None else MissingFile(_no_rows(path))
    rows = select(rows, where, describe, warn)
    rows = rows if path is None else _once(rows, warn)
    tell_codes(source_name(source), rows, code_reader(source), warn)
    tell_altered(source_name(source), rows, describe, warn)
    if path is not None and not is_parquet(path):
        tell_missing(ResultsFolder(path), rows, bool(where), warn)
    return rows


def code_reader(source: Source) -> ReadCode:
    """Return a function from the `code` of a row to the hashes of its parts, or None where they were not kept."""
    path = place_of(source)
    return (lambda code: None) if path is None or is_parquet(path) else cache(ResultsFolder(path).read_code)


def describer(source: Source) -> Describe:
    """Return a function from a cell to its description, or None if none was kept; each is read once."""
    path = place_of(source)
    return (lambda cell: None) if path is None else describer_of(path)


def answered_elsewhere(description: Mapping[str, Any] | None) -> bool:
    """Return whether a cell was answered by others, such as a server: they evict, so that it has no score."""
    return description is not None and "score" not in description


def _once(rows: pa.Table, warn: Warn) -> pa.Table:
    """Return each (cell, sample) once, by the rule of `choose_record`; what is dropped goes to ``warn``.

    Raises ValueError naming both places if two rows of one sample and code that did not fail have different outcomes,
    that is, differ in more than seconds and environment.
    """
    drop: list[int] = []
    identical = retried = superseded = 0
    for all_records in recorded_again(rows):
        counts = counting(all_records)
        records = [record for record in all_records if record["code"] == counts["code"]]
        superseded += len(all_records) - len(records)
        good = [record for record in records if record["error"] is None]
        if len(good) > 1:
            check_identical(good, "remove the wrong one, or move its file away")
        identical += max(len(good) - 1, 0)
        retried += len(records) - max(len(good), 1)
        drop += [record["place"] for record in all_records if record is not counts]
    if identical:
        warn(f"{count_noun(identical, 'row')} recorded twice with the same outcome; each sample counts once")
    if superseded:
        warn(f"{count_noun(superseded, 'row')} of other code were replaced by later rows; each sample counts once")
    if retried:
        warn(f"{count_noun(retried, 'row')} with an error were replaced by a later run; each sample counts once")
    return without(rows, drop)


def _no_rows(path: Path) -> str:
    if path.is_file():
        state = "has no rows" if path.suffix == ".parquet" else "is not a folder"
    elif path.is_dir():
        state = "has no rows yet" if ResultsFolder(path).rows.is_dir() else "is not a results folder"
    else:
        state = "does not exist"
    fix = "run `kvbench run`, or name the folder of a run with --results"
    return f"results folder {os.fspath(path)!r} {state}; {fix}"
