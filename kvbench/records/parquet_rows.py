"""Rows in one Parquet file: all columns, with the descriptions of their cells and a checksum as metadata."""

import base64
import json
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from kvbench.records.columns import REQUIRED, TYPES, shares_outside, too_large, warn_of_unknown, with_places
from kvbench.records.lines import Warn
from kvbench.records.parquet import DAMAGED, checked_bytes, to_parquet
from kvbench.records.row import COLUMNS, LARGEST_NUMBER, SCHEMA, check_schema
from kvbench.support.errors import UserError
from kvbench.support.parquet import check_growth

_SCHEMA, _CELLS = b"kvbench.schema", b"kvbench.cells.zlib"
"""Metadata of a Parquet file: the version of the columns; the descriptions of cells, as compressed JSON."""
LARGEST = 2**28
"""Bytes that the descriptions of all cells of a Parquet file may have."""


def write_parquet(
    rows: pa.Table,
    path: str | os.PathLike[str],
    describe: Callable[[str], Mapping[str, Any] | None],
    moments: Mapping[bytes, bytes] | None = None,
) -> None:
    """Write all columns of rows, with descriptions of their cells and a checksum as metadata. Same rows, same bytes.

    moments: when the rows of a cell were made, where that is known, as `kvbench.records.moments.as_metadata` writes it.
    """
    described = {cell: describe(cell) for cell in sorted(set(rows["cell"].to_pylist()))}
    metadata = metadata_of({cell: text for cell, text in described.items() if text is not None})
    Path(path).write_bytes(to_parquet(rows.select(list(COLUMNS)), {**metadata, **(moments or {})}))


def metadata_of(descriptions: Mapping[str, Mapping[str, Any]]) -> dict[bytes, bytes]:
    """Return the metadata of a Parquet file of rows: the version of its columns, and the descriptions of its cells."""
    text = json.dumps(descriptions, sort_keys=True)
    return {_SCHEMA: str(SCHEMA).encode(), _CELLS: base64.b64encode(zlib.compress(text.encode(), 9))}


def read_parquet(path: Path, columns: Sequence[str], warn: Warn) -> pa.Table:
    """Return the rows of a Parquet file, with their places. Raises ValueError if this version cannot read them, or if
    its bytes differ from its checksum.
    """
    data, is_checked = checked_bytes(path)
    try:
        with pyarrow.parquet.ParquetFile(pa.BufferReader(data)) as file:
            schema = file.schema_arrow
            check_schema(int((schema.metadata or {}).get(_SCHEMA, b"0")))
            if absent := [name for name in REQUIRED if name not in schema.names]:
                raise UserError(f"rows have the column {absent[0]!r}")
            warn_of_unknown(path, schema.names, warn)
            check_growth(data, columns)
            rows = file.read([name for name in TYPES if name in columns and name in schema.names])
        arrays = [
            rows[name].cast(TYPES[name]) if name in rows.column_names else pa.nulls(rows.num_rows, TYPES[name])
            for name in columns
        ]
    except (ValueError, OSError, pa.ArrowException) as error:  # pa.ArrowInvalid is a ValueError
        raise UserError(f"{path}: not a Parquet file of rows: {' '.join(str(error).split())}") from error
    if not is_checked:  # where its name is damaged, a checksum is not found
        raise UserError(f"{path}: {DAMAGED}")
    table = pa.table(arrays, names=list(columns))
    if "value" in columns and (outside := shares_outside(table)):
        raise UserError(f"{path}: a value of {outside[0]} is not in 0..1: the file is damaged; copy or export it again")
    if large := too_large(table):
        raise UserError(f"{path}: the column {large[0]!r} has a number over {LARGEST_NUMBER:g}: the file is damaged")
    for name in REQUIRED:
        if name in columns and table[name].null_count:
            raise UserError(f"{path}: the column {name!r} has missing values; it must have none")
    return with_places(table, columns, path, range(1, table.num_rows + 1))


def descriptions_of(path: Path) -> dict[str, Any]:
    """Return the descriptions of cells in the metadata of a Parquet file. Raises ValueError if they are broken."""
    try:
        metadata = pyarrow.parquet.read_metadata(path).metadata or {}
        text, decompressor = b"{}", zlib.decompressobj()
        if _CELLS in metadata:
            text = decompressor.decompress(base64.b64decode(metadata[_CELLS]), LARGEST)
            if decompressor.unconsumed_tail:
                raise UserError(f"unpacked they have more than {LARGEST} bytes")
        cells = json.loads(text)
    except (ValueError, OSError, pa.ArrowException, RecursionError, zlib.error) as error:
        raise UserError(f"{path}: its descriptions of cells cannot be read: {error}") from error
    if not isinstance(cells, dict) or not all(isinstance(cell, dict) for cell in cells.values()):
        raise UserError(f"{path}: its descriptions of cells cannot be read: they are no objects")
    return cells
