"""Rows files to an Arrow table: fast where a file is whole, line by line where something is wrong with it.

A table of rows has the asked columns of `kvbench.records.Row`, and ``file`` and ``line``: where each row stands. A
``value`` that is no number (NaN, infinity) stays NaN here, so that a report can count it; anywhere else it is refused.
Half of a surrogate pair, which Arrow cannot hold, becomes an escape.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json

from kvbench.records import COLUMNS, SCHEMA, Row
from kvbench.records.lines import broken, dropped, torn

BLOCK = 4 * 2**20  # bytes of a file that are parsed at a time
_FILE = pa.dictionary(pa.int32(), pa.string())
Warn = Callable[[str], None]

TYPES: dict[str, pa.DataType] = {
    field.name: pa.string()
    if isinstance("", field.type)  # type: ignore[arg-type]
    else pa.int64()
    if isinstance(0, field.type)  # type: ignore[arg-type]
    else pa.float64()
    for field in fields(Row)
}
REQUIRED = tuple(field.name for field in fields(Row) if not isinstance(None, field.type))  # type: ignore[arg-type]


def empty(columns: Sequence[str]) -> pa.Table:
    """A table of no rows."""
    kinds = [(name, TYPES[name]) for name in columns]
    return pa.schema([*kinds, ("file", _FILE), ("line", pa.int64())]).empty_table()


def table_of(rows: Iterable[Row]) -> pa.Table:
    """Rows as columns, without their places."""
    found = [{name: _held(getattr(row, name)) for name in COLUMNS} for row in rows]
    return pa.Table.from_pylist(found, pa.schema(list(TYPES.items())))


def placed(rows: pa.Table, columns: Sequence[str], path: Path, first: int) -> pa.Table:
    """The columns of rows that stand in a file from line ``first`` on."""
    count = rows.num_rows
    file = pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), count), [str(path)])
    line = pa.array(np.arange(first, first + count))
    return rows.select(list(columns)).append_column("file", file).append_column("line", line)


def read_lines(path: Path, columns: Sequence[str], warn: Warn) -> Iterator[pa.Table]:
    """The rows of one file of JSON lines, a table a block.

    A torn last line is dropped and told to ``warn``, and so are columns that this version does not know.
    Raises ValueError naming file and line for anything else that is not a row.
    """
    size, first, rest = path.stat().st_size, 1, b""
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            whole, newline, rest = (rest + block).rpartition(b"\n")
            if newline:
                if first == 1:
                    _tell_unknown(path, whole.partition(b"\n")[0], warn)
                count = whole.count(b"\n") + 1
                rows = _fast(whole, count, columns)
                if rows is None:
                    rows = _slow(path, whole, first, file.tell() == size and not rest, warn)
                yield placed(rows, columns, path, first)
                first += count
    if rest:
        warn(dropped(path, first))


def row_of(line: bytes) -> tuple[Row, bool]:
    """The row of a line, and whether its value is something that is no number. Raises ValueError as `Row` does."""
    try:
        return Row.from_json(line), False
    except ValueError:
        data = _loose(line)
        value = data.get("value") if isinstance(data, dict) else None
        if not (isinstance(value, float) and not math.isfinite(value)):
            raise
        return Row.from_json(json.dumps(data | {"value": None})), True


def _loose(line: bytes) -> Any:
    """What a line says where NaN is a number; None where it says nothing."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def rows_at(path: Path, lines: Sequence[int]) -> list[Row]:
    """The rows on these lines of a file, counted from 1, in the order of the file."""
    wanted, found = sorted(lines), []
    with path.open("rb") as file:
        at = 0
        for number in wanted:
            (line,) = islice(file, number - at - 1, number - at)
            found.append(row_of(line)[0])
            at = number
    return found


def _fast(lines: bytes, count: int, columns: Sequence[str]) -> pa.Table | None:
    """These columns of all lines at once, or None where one of them needs a closer look."""
    kinds = {name: kind for name, kind in TYPES.items() if name in (*columns, *REQUIRED, "value", "error")}
    known = pa.schema([("schema", pa.int64()), *kinds.items()])
    options = pyarrow.json.ParseOptions(explicit_schema=known, unexpected_field_behavior="ignore")
    try:
        rows = pyarrow.json.read_json(pa.BufferReader(lines), parse_options=options)
    except pa.ArrowInvalid:
        return None
    both = rows["value"].is_valid().to_numpy() & rows["error"].is_valid().to_numpy()
    wrong = (
        rows.num_rows != count
        or any(rows[name].null_count for name in REQUIRED)
        or not set(rows["schema"].unique().to_pylist()) <= {None, *range(1, SCHEMA + 1)}
        or both.any()
        or any(not _finite(rows[name]) for name, kind in kinds.items() if kind == pa.float64() and name != "value")
    )
    return None if wrong else rows


def _finite(numbers: pa.ChunkedArray) -> bool:
    return np.count_nonzero(~np.isfinite(numbers.to_numpy())) == numbers.null_count


def _slow(path: Path, lines: bytes, first: int, final: bool, warn: Warn) -> pa.Table:
    found: list[dict[str, Any]] = []
    split = lines.split(b"\n")
    for number, line in enumerate(split, start=first):
        try:
            row, is_none = row_of(line)
        except ValueError as error:  # also json.JSONDecodeError and UnicodeDecodeError
            if final and number == first + len(split) - 1 and torn(error):
                warn(dropped(path, number, error))
                break
            raise broken(path, number, "a row", error) from error
        found.append({name: _held(getattr(row, name)) for name in COLUMNS} | ({"value": math.nan} if is_none else {}))
    return pa.Table.from_pylist(found, pa.schema(list(TYPES.items())))


def _held(value: Any) -> Any:
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


def _tell_unknown(path: Path, line: bytes, warn: Warn) -> None:
    """A file is written by one process, so its first line speaks for all."""
    names = _loose(line)
    if not isinstance(names, dict):  # told by the reader
        return
    if unknown := [name for name in names if name not in (*COLUMNS, "schema")]:
        warn(f"{path}: columns that this kvbench does not know are left out: {', '.join(sorted(unknown))}")
