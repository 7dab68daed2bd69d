"""Rows as one Parquet file, with the descriptions of their cells in its metadata: readable wherever a folder is."""

import base64
import json
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from kvbench.records import COLUMNS, SCHEMA, Row, check_schema
from kvbench.report.reading import REQUIRED, TYPES, Warn, placed
from kvbench.support.errors import UserError

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
