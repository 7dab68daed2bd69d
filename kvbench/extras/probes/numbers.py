"""Numbers of probes on disk: one Parquet file per sample and cell, complete or absent.

probes/<probe>-<cell>-<sample>.parquet     COLUMNS, one row per number; `SELECT * FROM 'DIR/probes/*.parquet'`
cells/<cell>.json                          the full description, with the settings of the probe
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from kvbench.records.folder import NUMBERS, replacing
from kvbench.records.lines import check_file, listed
from kvbench.records.parquet import DAMAGED, checked_bytes, to_parquet
from kvbench.support.errors import UserError
from kvbench.support.parquet import check_growth

_TEXT, _INTEGER, _NUMBER = pa.string(), pa.int64(), pa.float64()
COLUMNS: Mapping[str, pa.DataType] = {
    "probe": _TEXT,
    "cell": _TEXT,
    "model": _TEXT,
    "task": _TEXT,
    "context_length": _INTEGER,
    "policy": _TEXT,
    "score": _TEXT,
    "budget": _TEXT,
    "schedule": _TEXT,
    "seed": _INTEGER,
    "sample": _INTEGER,
    "context_sha256": _TEXT,
    "prompt_tokens": _INTEGER,
    "layer": _INTEGER,
    "head": _INTEGER,
    "window": _INTEGER,
    "recent": _INTEGER,
    "position": _INTEGER,
    "quantity": _TEXT,
    "value": _NUMBER,
    "error": _TEXT,
    "environment": _TEXT,
}
"""Columns and their types. Columns that do not apply to a number are null; a failed sample is one row with an error."""

SCHEMA = pa.schema(list(COLUMNS.items()))
_NAME = re.compile(r"(?P<probe>[a-z_]+)-(?P<cell>[0-9a-f]{16})-(?P<sample>\d+)\.parquet")


def write_probed(folder: Path, common: Mapping[str, Any], numbers: Sequence[Mapping[str, Any]]) -> None:
    """Write the numbers of one sample and cell, replacing earlier ones. `common` are the columns equal in all rows."""
    name = f"{common['probe']}-{common['cell']}-{common['sample']:05d}.parquet"
    if not _NAME.fullmatch(name):
        raise UserError(
            f"probe {common['probe']}: its numbers cannot be filed as {name}: names of probes are a-z and _"
        )
    table = pa.Table.from_pylist([{**common, **number} for number in numbers], SCHEMA)
    with replacing(folder / NUMBERS / name) as temporary:
        temporary.write_bytes(to_parquet(table))


def probed(folder: Path, cells: Mapping[str, int]) -> pa.Table:
    """Return all numbers of these cells, for samples below the number given for each; cells and samples in order.

    Raises UserError for a damaged file.
    """
    order = {cell: place for place, cell in enumerate(cells)}
    files = [(order[cell], sample, path) for cell, sample, path in _files(folder) if sample < cells.get(cell, 0)]
    return pa.concat_tables([SCHEMA.empty_table(), *(_read(path) for _, _, path in sorted(files))])


def probed_already(folder: Path, cells: Mapping[str, int], retry_errors: bool = False) -> set[tuple[str, int]]:
    """Return the recorded (cell, sample) pairs; with `retry_errors` without those that failed."""
    files = {(cell, sample): path for cell, sample, path in _files(folder) if cell in cells}
    if retry_errors:
        return {key for key, path in files.items() if not any(_read(path)["error"].to_pylist())}
    return set(files)


def _files(folder: Path) -> list[tuple[str, int, Path]]:
    matches = ((_NAME.fullmatch(path.name), path) for path in listed(folder / NUMBERS, ".parquet"))
    return [(match["cell"], int(match["sample"]), path) for match, path in matches if match]


def _read(path: Path) -> pa.Table:
    """Read the numbers of a file.

    Raises UserError for a damaged file, and for one that holds something else than its name says.
    """
    check_file(path)
    data, is_checked = checked_bytes(path)
    if not is_checked:
        raise UserError(f"{path}: {DAMAGED}")
    try:
        check_growth(data, SCHEMA.names)
        table = pyarrow.parquet.read_table(pa.BufferReader(data), schema=SCHEMA)
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{path}: not the numbers of a probe: {reason}; move the file away") from error
    if {f"{probe}-{cell}-{sample:05d}.parquet" for probe, cell, sample in _keys(table)} != {path.name}:
        raise UserError(f"{path}: the numbers of another probe, cell or sample than its name says; move the file away")
    return table


def _keys(table: pa.Table) -> Iterable[tuple[str, str, int]]:
    columns = (table[name].to_pylist() for name in ("probe", "cell", "sample"))
    return (names for names in set(zip(*columns, strict=True)) if None not in names)
