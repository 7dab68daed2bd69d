"""The way in for every report: the rows of a folder or a Parquet file, or one line about why there are none."""

import os
import warnings
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import pyarrow as pa

from kvbench.records import COLUMNS, ResultsFolder, Row
from kvbench.report.duplicates import once
from kvbench.report.parquet import cells_of, read_parquet, rows_of
from kvbench.report.reading import Warn, empty, read_lines, rows_at
from kvbench.report.tables.where import Describe, Where, check_where, select
from kvbench.support.errors import MissingFile, UserError


def check_format(format: str, known: Sequence[str]) -> None:
    """Raises ValueError for a format that is not known."""
    if format not in known:
        near = get_close_matches(format, known, n=1)
        meant = f"did you mean {near[0]}? " if near else ""
        raise UserError(f"there is no format {format!r}; {meant}choose --format {'|'.join(known)}")


def load(source: str | os.PathLike[str], warn: Warn = warnings.warn, where: Where | None = None) -> list[Row]:
    """The rows that `load_table` finds, in its order, with all their columns as recorded."""
    table = load_table(source, ("cell", "sample", "error"), warn, where)
    return _fetch(list(zip(table["file"].to_pylist(), table["line"].to_pylist(), strict=True)))


def load_table(
    source: str | os.PathLike[str],
    columns: Sequence[str] = COLUMNS,
    warn: Warn = warnings.warn,
    where: Where | None = None,
) -> pa.Table:
    """The rows of a results folder or of a Parquet file as columns, each (cell, sample) once, files by name.

    The table has ``columns``, those that ``where`` asks about, ``cell sample error``, and ``file`` and ``line``, the
    place of a row. ``where``: see `kvbench.report.tables.where.select`.

    Raises FileNotFoundError where there are no rows, NothingSelected where none is asked for, ValueError naming file
    and line for a broken row and for two rows of one sample that contradict each other.
    """
    where = where or {}
    check_where(where)
    path = Path(source)
    needed = {"cell", "sample", "error", *columns, *where}
    ordered = [name for name in COLUMNS if name in needed]
    if path.is_file() and path.suffix == ".parquet":
        tables = [read_parquet(path, ordered, warn)]
    else:
        files = sorted(ResultsFolder(path).rows.glob("*.jsonl"))
        tables = [part for file in files for part in read_lines(file, ordered, warn)]
    rows = pa.concat_tables([empty(ordered), *tables])
    if not rows.num_rows:
        raise MissingFile(_no_rows(path))
    return once(select(rows, where, describer(path), warn), _fetch, warn)


def describer(source: str | os.PathLike[str]) -> Describe:
    """What gives the description of a cell, or None where none was kept."""
    path = Path(source)
    if path.is_file() and path.suffix == ".parquet":
        cells: Mapping[str, Any] = cells_of(path)
        return cells.get
    return ResultsFolder(path).read_cell


def _fetch(places: Sequence[tuple[str, int]]) -> list[Row]:
    """The rows at (file, line), in the order asked for."""
    lines: dict[str, list[int]] = {}
    for file, line in places:
        lines.setdefault(file, []).append(line)
    found: dict[tuple[str, int], Row] = {}
    for file, wanted in lines.items():
        path, wanted = Path(file), sorted(wanted)
        if path.suffix == ".parquet":
            taken = rows_of(read_parquet(path, COLUMNS, lambda text: None).take([line - 1 for line in wanted]))
        else:
            taken = rows_at(path, wanted)
        found.update(zip(((file, line) for line in wanted), taken, strict=True))
    return [found[place] for place in places]


def _no_rows(path: Path) -> str:
    if path.is_file():
        found = "has no rows" if path.suffix == ".parquet" else "is not a folder"
    elif path.is_dir():
        found = "has no rows yet" if ResultsFolder(path).rows.is_dir() else "is not a results folder"
    else:
        found = "does not exist"
    fix = "make rows with `kvbench run`, or name the folder of a run with --results"
    return f"results folder {os.fspath(path)!r} {found}; {fix}"
