"""Parquet files of others, whose dictionaries and runs make gigabytes of kilobytes: what they grow to is counted."""

from collections.abc import Sequence
from typing import Any

from kvbench.support.errors import UserError

LARGEST_RATIO = 100
"""Maximum bytes of what a file becomes per byte of it: texts shrink to a fifth, a bomb to a thousandth."""
SMALL = 2**28
"""Bytes that a table may always have: rows that say the same shrink to less than a hundredth."""
BATCH = 2**16
"""Rows of which the texts are counted at a time."""
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8, "BYTE_ARRAY": 4}
"""Bytes of a value in a table by its type in a file; of a text without its letters."""


def check_growth(data: bytes, columns: Sequence[str] | None = None) -> None:
    """Raise UserError for the bytes of a file of which a table, or these columns of it, would be too large.

    Raises what pyarrow raises for bytes that are no Parquet.
    """
    import pyarrow as pa
    from pyarrow import parquet

    limit = max(SMALL, LARGEST_RATIO * len(data))
    metadata = parquet.read_metadata(pa.BufferReader(data))
    schema = [metadata.schema.column(index) for index in range(metadata.num_columns)]
    indices = [index for index, column in enumerate(schema) if columns is None or column.path.split(".")[0] in columns]
    widths = [_WIDTHS.get(column.physical_type, column.length) for column in schema]
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    num_bytes = sum(
        widths[index] * max(group.column(index).num_values, group.num_rows) for group in groups for index in indices
    )
    texts = [schema[index].path for index in indices if schema[index].physical_type == "BYTE_ARRAY"]
    with parquet.ParquetFile(pa.BufferReader(data), metadata=metadata, read_dictionary=texts) as file:
        read = file.iter_batches(BATCH, columns=texts, use_threads=False) if num_bytes <= limit else ()
        for batch in read:
            if (num_bytes := num_bytes + sum(map(text_bytes, batch.columns))) > limit:
                break
    if num_bytes > limit:
        raise UserError(
            f"it would grow to more than {limit // 2**20} MiB: a table may have {SMALL // 2**20} MiB, or "
            f"{LARGEST_RATIO} times the size of its file"
        )


def text_bytes(column: Any) -> int:
    """Return the bytes of all texts of a column of Arrow, each as often as it comes."""
    import pyarrow as pa
    from pyarrow import compute

    if pa.types.is_dictionary(column.type):
        lengths = compute.call_function("binary_length", [column.dictionary])
        return lengths.take(column.indices).cast(pa.int64()).sum().as_py() or 0
    if pa.types.is_nested(column.type):
        parts = column.flatten()
        return sum(map(text_bytes, parts if isinstance(parts, list) else [parts]))
    return 0
