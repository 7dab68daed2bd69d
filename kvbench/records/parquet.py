"""Parquet files that have the CRC-32 of their other bytes in their metadata, so that no change of one goes unseen."""

import zlib
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet

from kvbench.support.errors import UserError
from kvbench.support.whole_file import read_whole

_CHECKSUM = b"kvbench.crc32"
LARGEST = 2**30
"""Bytes of a file: ten million rows."""
DAMAGED = "damaged: its bytes do not match its checksum; copy or export it again"
_BEFORE_CHECKSUM = _CHECKSUM + b"\x18\x08"
"""What stands before the eight digits: the name, and their type and length."""


def to_parquet(table: pa.Table, metadata: Mapping[bytes, bytes] | None = None) -> bytes:
    """Return a table with this metadata and its checksum. The same rows give the same bytes."""
    stream = pa.BufferOutputStream()
    table = table.replace_schema_metadata({**(metadata or {}), _CHECKSUM: b"0" * 8})
    pyarrow.parquet.write_table(table, stream, compression="zstd")
    before, mark, after = stream.getvalue().to_pybytes().rpartition(_BEFORE_CHECKSUM)
    return before + mark + b"%08x" % zlib.crc32(after[8:], zlib.crc32(before + mark)) + after[8:]


def checked_bytes(path: Path) -> tuple[bytes, bool]:
    """Return a file, and whether it has a checksum. Raises UserError if that is not the one of its bytes, and for more
    than `LARGEST`.
    """
    data = read_whole(path, LARGEST)
    place = data.rfind(_BEFORE_CHECKSUM) + len(_BEFORE_CHECKSUM)
    is_checked = place >= len(_BEFORE_CHECKSUM)
    checksum = zlib.crc32(memoryview(data)[place + 8 :], zlib.crc32(memoryview(data)[:place]))
    if is_checked and data[place : place + 8] != b"%08x" % checksum:
        raise UserError(f"{path}: {DAMAGED}")
    return data, is_checked
