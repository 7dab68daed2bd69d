"""The rows of one file as columns: parsed from its lines, or from the copy that a run has left in `columns/`.

Lines are parsed by Arrow in blocks, while their checksums are computed; a block in which a line needs a closer look is
parsed line by line as `kvbench.records.read_rows` does. Damaged rows are left out.

columns/<name>.parquet    the rows of rows/<name>.jsonl, which its writer has ended, with the size and CRC-32 of that

A copy spares the parsing and nothing else. It is read only if this user has made it of the bytes that the rows file has
now: a record under `KVBENCH_HOME` is named by the SHA-256 of both, and a folder of others brings none. All copies, and
all records, may be removed at any time.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.json
import pyarrow.parquet

from kvbench.records.folder import Finished, replacing
from kvbench.records.lines import LineBlock, Warn, read_blocks
from kvbench.records.parquet import checked_bytes, to_parquet
from kvbench.records.row import COLUMNS, HIGHER, LARGEST_NUMBER, LOWER, SCHEMA, SHARE, Row
from kvbench.records.rows_files import Damage, FileCheck
from kvbench.support.errors import UserError
from kvbench.support.paths import home

FOLDER = "columns"
LEAST_BYTES = 2**18
"""The size of a rows file from which a copy is worth its place: some hundred rows."""
_IDENTITY = b"kvbench.copy_of"
"""Metadata of a copy: the schema of its columns, and size and CRC-32 of the rows file."""
_FILE = pa.dictionary(pa.int32(), pa.string())

TYPES: dict[str, pa.DataType] = {
    name: pa.string() if isinstance("", kind) else pa.int64() if isinstance(0, kind) else pa.float64()
    for name, kind in ((field.name, cast(type, field.type)) for field in fields(Row))
}
JUDGED = ("metric", "unit", "better", "value", "error")
REQUIRED = tuple(field.name for field in fields(Row) if not isinstance(None, field.type))  # type: ignore[arg-type]


def empty_table(columns: Sequence[str]) -> pa.Table:
    """Return no rows, with these columns and the places of rows."""
    return pa.schema([*((name, TYPES[name]) for name in columns), ("file", _FILE), ("line", pa.int64())]).empty_table()


def read_file(
    path: Path, columns: Sequence[str], parser: ThreadPoolExecutor, damage: Damage, warn: Warn, keep: bool = False
) -> pa.Table:
    """Return these columns of the whole rows of a file, with their places. ``keep``: leave a copy for the next
    reader.
    """
    check = FileCheck(path, damage, warn)
    if check.ended is not None and (copy := _read_copy(path, check.ended, columns)) is not None:
        return with_places(copy, columns, path, range(1, copy.num_rows + 1))
    keep = keep and check.ended is not None and path.stat().st_size >= LEAST_BYTES
    read, is_plain, tables = COLUMNS if keep else columns, True, [empty_table(columns)]
    parts: list[pa.Table] = []
    for block in read_blocks(path, warn):
        if block.first == 1:  # one process writes a file, so its first line speaks for all
            is_plain = not warn_of_unknown(path, _keys_of(block.text.partition(b"\n")[0]), warn)
        numbers, rows, is_parsed_at_once = _read_block(block, check, read, parser)
        is_plain &= is_parsed_at_once
        tables.append(with_places(rows, columns, path, numbers))
        if keep and is_plain:
            parts.append(rows.select(list(COLUMNS)))
    check.end()
    if check.ended is not None and parts and is_plain:
        with suppress(OSError):  # a folder of others, a full disk: the next reader parses again
            _write_copy(path, check.ended, pa.concat_tables(parts))
    return pa.concat_tables(tables)


def _read_block(
    block: LineBlock, check: FileCheck, columns: Sequence[str], parser: ThreadPoolExecutor
) -> tuple[Sequence[int], pa.Table, bool]:
    """Return the numbers of the whole lines of a block, their rows, and whether they are all lines, parsed at once."""
    parsed = None
    if block.are_objects:  # a line that is null would end the process within Arrow
        parsed = parser.submit(_parse_at_once, block.text, block.count, columns)  # while checksums are computed
    numbers, rows = check.whole(block), parsed and parsed.result()
    if rows is not None and len(numbers) == block.count:
        return numbers, rows, True
    texts = block.text.split(b"\n")
    lines = [texts[number - block.first] for number in numbers]
    are_objects = all(line.startswith(b"{") for line in lines)
    rows = _parse_at_once(b"\n".join(lines), len(lines), columns) if are_objects else None
    if rows is None:
        checked = {n: check.row(line, n, block) for line, n in zip(lines, numbers, strict=True)}
        numbers = [number for number, row in checked.items() if row is not None]
        rows = table_of(row for row in checked.values() if row is not None)
    return numbers, rows, False


def _copy_of(path: Path) -> Path:
    return path.parents[1] / FOLDER / f"{path.stem}.parquet"


def _record_of(path: Path, copy: bytes) -> Path:
    """Return the file whose presence says that this user made this copy of a rows file with the bytes that it has
    now.
    """
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
    digest.update(hashlib.sha256(copy).digest())
    return home() / FOLDER / digest.hexdigest()


def _identity(path: Path, ended: Finished) -> bytes:
    """Return the identity of the original: the bytes of the rows file, in the columns of this schema."""
    return f"{SCHEMA} {len(COLUMNS)} {path.stat().st_size} {ended.crc32}".encode()


def _read_copy(path: Path, ended: Finished, columns: Sequence[str]) -> pa.Table | None:
    """Return these columns of the copy of a rows file; None without one of these bytes that this user made."""
    copy = _copy_of(path)
    if not copy.is_file():
        return None
    names = [name for name in TYPES if name in {*columns, *REQUIRED, *JUDGED}]
    try:
        data = checked_bytes(copy)[0]
        with pyarrow.parquet.ParquetFile(pa.BufferReader(data)) as file:
            identity = (file.schema_arrow.metadata or {}).get(_IDENTITY)
            if identity != _identity(path, ended) or file.metadata.num_rows != ended.rows:
                return None
            if not _record_of(path, data).is_file():
                return None
            rows = file.read(names, use_threads=False)
    except (UserError, ValueError, OSError, pa.ArrowException):
        return None
    return None if _is_suspicious(rows) else rows


def _write_copy(path: Path, ended: Finished, rows: pa.Table) -> None:
    data = to_parquet(rows, {_IDENTITY: _identity(path, ended)})
    record = _record_of(path, data)
    record.parent.mkdir(parents=True, exist_ok=True)
    record.touch()
    with replacing(_copy_of(path)) as temporary:
        temporary.write_bytes(data)


def table_of(rows: Iterable[Row]) -> pa.Table:
    """Rows as columns, without their places."""

    def encodable(value: Any) -> Any:
        return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value

    lines = [{name: encodable(getattr(row, name)) for name in COLUMNS} for row in rows]
    return pa.Table.from_pylist(lines, pa.schema(list(TYPES.items())))


def _parse_at_once(lines: bytes, count: int, columns: Sequence[str]) -> pa.Table | None:
    """Return these columns of all lines, or None if one of the lines needs a closer look."""
    types = {name: kind for name, kind in TYPES.items() if name in (*columns, *REQUIRED, *JUDGED)}
    schema = pa.schema([("schema", pa.int64()), *types.items()])
    options = pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    try:
        rows = pyarrow.json.read_json(pa.BufferReader(lines), parse_options=options)
    except pa.ArrowInvalid:
        return None
    is_known = rows["schema"].unique().to_pylist() == [SCHEMA]
    rows = rows.drop_columns(["schema"])
    return rows if is_known and rows.num_rows == count and not _is_suspicious(rows) else None


def _is_suspicious(rows: pa.Table) -> bool:
    """Return whether a row is none that `Row` allows, among columns that include those required and judged."""
    value_and_error = rows["value"].is_valid().to_numpy() & rows["error"].is_valid().to_numpy()
    return bool(
        any(rows[name].null_count for name in REQUIRED)
        or value_and_error.any()
        or shares_outside(rows)
        or set(rows["better"].unique().to_pylist()) - {None, HIGHER, LOWER}
        or too_large(rows)
        or any(
            np.count_nonzero(~np.isfinite(rows[name].to_numpy())) != rows[name].null_count
            for name in rows.column_names
            if TYPES[name] == pa.float64()
        )
    )


def too_large(rows: pa.Table) -> list[str]:
    """Columns with a number that is no measurement."""
    numbers = {name: rows[name].to_numpy() for name in rows.column_names if TYPES.get(name) == pa.float64()}
    return [name for name, column in numbers.items() if (np.abs(column) > LARGEST_NUMBER).any()]


def shares_outside(rows: pa.Table) -> list[str]:
    """Return the metrics of rows that are shares, and whose values are not in 0..1."""
    values = rows["value"].to_numpy()
    outside = rows.select(["metric", "unit"]).filter(pa.array((values < 0.0) | (values > 1.0)))
    return sorted({str(row["metric"]) for row in outside.to_pylist() if row["unit"] == SHARE})


def _keys_of(line: bytes) -> list[str]:
    """Return the keys of a JSON object; none if the line is something else, which its parser then refuses."""
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return []
    return list(content) if isinstance(content, dict) else []


def warn_of_unknown(path: Path, names: Iterable[str], warn: Warn) -> bool:
    """Warn of columns that this kvbench does not know; returns whether there are any."""
    unknown = sorted(name for name in names if name not in (*COLUMNS, "schema", "checksum"))
    if unknown:
        warn(f"{path}: columns that this kvbench does not know are left out: {', '.join(unknown)}")
    return bool(unknown)


def with_places(rows: pa.Table, columns: Sequence[str], path: Path, lines: Sequence[int]) -> pa.Table:
    """Return the columns of rows that stand in these lines of a file, with ``file`` and ``line``."""
    count = rows.num_rows
    file = pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), count), [str(path)])
    line = pa.array(np.asarray(lines, np.int64))
    return rows.select(list(columns)).append_column("file", file).append_column("line", line)
