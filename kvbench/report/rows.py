"""Rows files to an Arrow table: fast where a file is whole, line by line where something is wrong with it.

A table of rows has the asked columns of `kvbench.records.Row`, and ``file`` and ``line``: where each row stands. A
``value`` that is no number (NaN, infinity) stays NaN here, so that a report can count it; anywhere else it is refused.
Half of a surrogate pair, which Arrow cannot hold, becomes an escape.

The way in for every report: the rows of a folder or a Parquet file, or one line about why there are none.

Each (cell, sample) once: what counts where a sample was recorded several times.

Rows as one Parquet file, with the descriptions of their cells in its metadata: readable wherever a folder is.
"""

import base64
import json
import math
import os
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import islice
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.json
import pyarrow.parquet

from kvbench.records import COLUMNS, SCHEMA, ResultsFolder, Row, check_schema
from kvbench.records.lines import broken, dropped, torn
from kvbench.report.selection import Describe, Where, check_where, select
from kvbench.support.errors import MissingFile, UserError

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
    place of a row. ``where``: see `kvbench.report.selection.select`.

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


Fetch = Callable[[Sequence[tuple[str, int]]], Sequence[Row]]


def once(rows: pa.Table, fetch: Fetch, warn: Warn) -> pa.Table:
    """Drop rows that say nothing new, and tell ``warn`` how many.

    Identical rows (all but seconds and environment) count once. A failed sample that was run again counts as run again;
    one that failed every time, as it failed last. ``fetch`` gives the rows at (file, line).

    Raises ValueError naming both places where two rows of one sample have different outcomes.
    """
    index = pa.array(np.arange(rows.num_rows))
    keyed = rows.select(["cell", "sample", "file", "line", "error"]).append_column("index", index)
    with duckdb.connect() as connection:
        connection.execute("SET enable_progress_bar = false")  # it goes to stdout
        connection.register("keyed", keyed)
        found = connection.execute(
            """SELECT cell, sample, list(struct_pack(file, line, index, failed := error IS NOT NULL) ORDER BY index)
            FROM keyed SEMI JOIN (FROM keyed SELECT cell, sample GROUP BY ALL HAVING count(*) > 1) USING (cell, sample)
            GROUP BY cell, sample ORDER BY min(index)"""
        ).fetchall()
    if not found:
        return rows
    drop: list[int] = []
    identical = retried = 0
    for cell, sample, places in found:
        good = [place for place in places if not place["failed"]]
        if len(good) > 1:
            _check_identical(cell, sample, [(place["file"], place["line"]) for place in good], fetch)
            identical += len(good) - 1
        retried += len(places) - max(len(good), 1)
        stays = good[0] if good else places[-1]
        drop += [place["index"] for place in places if place is not stays]
    if identical:
        warn(f"{_rows(identical)} recorded again with the same outcome; each sample counts once")
    if retried:
        warn(f"{_rows(retried)} with an error that a later try replaces; each sample counts once")
    stay = np.ones(rows.num_rows, bool)
    stay[drop] = False
    return rows.filter(pa.array(stay))


def _check_identical(cell: str, sample: int, places: Sequence[tuple[str, int]], fetch: Fetch) -> None:
    first, *others = (row.outcome() for row in fetch(places))
    for place, other in zip(places[1:], others, strict=True):
        if differ := [name for name in first if first[name] != other[name]]:
            one, two = (f"{file}:{line}" for file, line in (places[0], place))
            raise UserError(
                f"cell {cell}, sample {sample} has two outcomes: {one} and {two} differ in {', '.join(differ)}; "
                "remove the one that should not count, or move its file away"
            )


def _rows(count: int) -> str:
    return f"{count} row{'s' * (count != 1)}"


_SCHEMA, _CELLS, _PACKED = b"kvbench.schema", b"kvbench.cells", b"kvbench.cells.zlib"
"""Marks: the version of the columns, and the descriptions of cells, as JSON (older files) or that compressed."""
LARGEST = 2**28
"""Bytes that the descriptions of all cells may have."""


def write_parquet(
    rows: pa.Table, path: str | os.PathLike[str], describe: Callable[[str], Mapping[str, Any] | None]
) -> None:
    """Write all columns of rows. The same rows give the same bytes."""
    cells = {cell: found for cell in sorted(set(rows["cell"].to_pylist())) if (found := describe(cell)) is not None}
    packed = base64.b64encode(zlib.compress(json.dumps(cells, sort_keys=True).encode(), 9))
    marks = {_SCHEMA: str(SCHEMA).encode(), _PACKED: packed}
    pyarrow.parquet.write_table(rows.select(list(COLUMNS)).replace_schema_metadata(marks), path, compression="zstd")


def read_parquet(path: Path, columns: Sequence[str], warn: Warn) -> pa.Table:
    """The rows of a Parquet file. Raises ValueError for a file that holds none that this version can read."""
    try:
        with pa.OSFile(str(path)) as source, pyarrow.parquet.ParquetFile(source) as file:
            schema = file.schema_arrow
            check_schema(int((schema.metadata or {}).get(_SCHEMA, b"1")))
            if absent := [name for name in REQUIRED if name not in schema.names]:
                raise UserError(f"rows have the column {absent[0]!r}")
            if unknown := [name for name in schema.names if name not in COLUMNS]:
                warn(f"{path}: columns that this kvbench does not know are left out: {', '.join(sorted(unknown))}")
            rows = file.read([name for name in TYPES if name in columns and name in schema.names])
        arrays = [
            rows[name].cast(TYPES[name]) if name in rows.column_names else pa.nulls(rows.num_rows, TYPES[name])
            for name in columns
        ]
    except (ValueError, pa.ArrowException) as error:  # pa.ArrowInvalid is a ValueError
        raise UserError(f"{path}: not a Parquet file of rows: {' '.join(str(error).split())}") from error
    table = pa.table(arrays, names=list(columns))
    for name in REQUIRED:
        if name in columns and table[name].null_count:
            raise UserError(f"{path}: the column {name!r} has blanks; it must have none")
    return placed(table, columns, path, 1)


def rows_of(table: pa.Table) -> list[Row]:
    """Rows of a table that has all columns; a value that is no number is missing."""
    held = table.select(list(COLUMNS)).to_pylist()
    return [Row(**{**row, "value": None} if row["value"] != row["value"] else row) for row in held]


def cells_of(path: Path) -> dict[str, Any]:
    """The descriptions of cells that travel with the rows. Raises ValueError where they are broken."""
    metadata = pyarrow.parquet.read_metadata(path).metadata or {}
    try:
        text = _unpacked(metadata[_PACKED]) if _PACKED in metadata else metadata.get(_CELLS, b"{}")
        found = json.loads(text)
    except (ValueError, RecursionError, zlib.error) as error:
        raise UserError(f"{path}: its descriptions of cells cannot be read: {error}") from error
    return found if isinstance(found, dict) else {}


def _unpacked(packed: bytes) -> bytes:
    """Raises ValueError for a text that grows beyond what descriptions can be."""
    unpacking = zlib.decompressobj()
    text = unpacking.decompress(base64.b64decode(packed), LARGEST)
    if unpacking.unconsumed_tail:
        raise UserError(f"they unpack to more than {LARGEST} bytes")
    return text
