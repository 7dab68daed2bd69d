"""Numbers of probes on disk: one Parquet file for each sample of each judged cell, there whole or not at all.

probes/<probe>-<cell>-<sample>.parquet     COLUMNS, one row a number; `SELECT * FROM 'DIR/probes/*.parquet'`
cells/<cell>.json                          the whole description, the probe's settings included
"""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from kvbench.records.folder import create_exclusive
from kvbench.support.errors import UserError

_TEXT, _WHOLE, _NUMBER = pa.string(), pa.int64(), pa.float64()
COLUMNS: Mapping[str, pa.DataType] = {
    "probe": _TEXT,
    "cell": _TEXT,
    "model": _TEXT,
    "task": _TEXT,
    "context_length": _WHOLE,
    "policy": _TEXT,
    "score": _TEXT,
    "budget": _TEXT,
    "schedule": _TEXT,
    "seed": _WHOLE,
    "sample": _WHOLE,
    "context_sha256": _TEXT,
    "prompt_tokens": _WHOLE,
    "layer": _WHOLE,
    "head": _WHOLE,
    "window": _WHOLE,
    "recent": _WHOLE,
    "position": _WHOLE,
    "quantity": _TEXT,
    "value": _NUMBER,
    "error": _TEXT,
    "environment": _TEXT,
}
"""Columns and their types. What a number is not about is missing; a sample that failed is one row with its error."""

_NAME = re.compile(r"(?P<probe>[a-z_]+)-(?P<cell>[0-9a-f]{16})-(?P<sample>\d+)\.parquet")


def write_probed(folder: Path, told: Mapping[str, Any], numbers: Sequence[Mapping[str, Any]]) -> Path:
    """Write the numbers of one sample and cell, in place of what was there. `told` is the same in all of its rows."""
    name = f"{told['probe']}-{told['cell']}-{told['sample']:05d}.parquet"
    if not _NAME.fullmatch(name):
        raise UserError(f"probe {told['probe']}: its numbers cannot be filed as {name}: a probe is named in a-z and _")
    table = pa.Table.from_pylist([{**told, **one} for one in numbers], pa.schema(list(COLUMNS.items())))
    final = folder / "probes" / name
    descriptor, temporary = create_exclusive(final.parent, ".tmp")
    os.close(descriptor)
    try:
        pyarrow.parquet.write_table(table, temporary, compression="zstd")
        os.replace(temporary, final)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return final


def probed(folder: Path, cells: Mapping[str, int]) -> pa.Table:
    """All numbers of these cells, of samples below the number that each names; cells and samples in order."""
    order = {cell: place for place, cell in enumerate(cells)}
    found = [one for one in _files(folder) if one[1] < cells.get(one[0], 0)]
    tables = [_read(path) for cell, _, path in sorted(found, key=lambda one: (order[one[0]], one[1]))]
    empty = pa.schema(list(COLUMNS.items())).empty_table()
    return pa.concat_tables([empty, *tables])


def probed_already(folder: Path, cells: Mapping[str, int], retry_errors: bool = False) -> set[tuple[str, int]]:
    """(cell, sample) pairs that are there; with `retry_errors` without those that failed."""
    found = {(cell, sample): path for cell, sample, path in _files(folder) if cell in cells}
    if retry_errors:
        return {key for key, path in found.items() if not any(_read(path)["error"].to_pylist())}
    return set(found)


def _files(folder: Path) -> list[tuple[str, int, Path]]:
    named = ((_NAME.fullmatch(path.name), path) for path in sorted((folder / "probes").glob("*.parquet")))
    return [(match["cell"], int(match["sample"]), path) for match, path in named if match]


def _read(path: Path) -> pa.Table:
    """Raises ValueError for a file that holds something else."""
    try:
        return pyarrow.parquet.read_table(path, schema=pa.schema(list(COLUMNS.items())))
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{path}: not the numbers of a probe: {reason}; move the file away") from error
