"""Rows of a run as the small files that are committed.

Left out are the seconds (rows are about outcomes; benchmarks/results/performance.md is about time), the hash of an
answer whose text is there, and the hashes of kept sets but those of the first samples. The rows of the main part that
the gate makes again are in a file of their own, with all hashes.
"""

import json
import shutil
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from kvbench.records import COLUMNS, Curve, KeptSets, read_rows, read_sidecar
from kvbench.records.moments import as_metadata
from kvbench.records.parquet_rows import write_parquet
from kvbench.report.rows import describer, load_table
from kvbench.support.grouped import grouped
from reference_results.moments import moments_of
from reference_results.rotation import key_of, rotation
from reference_results.sweeps import Part, RowSet
from reference_results.workers import read_parts

HASHED = 3
"""Samples of each cell whose hashes of kept sets stay."""
GATE = "gate.parquet"
_LEFT_OUT = ("prefill_seconds", "evict_seconds", "decode_seconds", "output_sha256")
_DIGITS = 3


def pack(folder: Path, out: Path, cells: Collection[str], samples: int, gate: bool = False) -> int:
    """Write the rows of some cells of a folder to a Parquet file, sorted; returns how many. `samples`: so many of each
    cell at most. `gate`: those alone that the gate makes again. Raises FileNotFoundError where there are none.
    """
    rows = load_table(folder, COLUMNS)
    chosen = np.isin(rows["cell"].to_numpy(), list(cells)) & (rows["sample"].to_numpy() < samples)
    rows = rows.filter(pa.array(chosen))
    if gate:
        rows = rows.filter(pa.array(rotated(rows)))
    rows = rows.sort_by([(name, "ascending") for name in ("task", "policy", "score", "budget", "cell", "sample")])
    for name in _LEFT_OUT:
        rows = _replaced(rows, name, pa.nulls(rows.num_rows, rows.schema.field(name).type))
    pairs = zip(rows["kept_sha256"].to_pylist(), rows["sample"].to_pylist(), strict=True)
    hashes = [digest if gate or sample < HASHED else None for digest, sample in pairs]
    rows = _replaced(rows, "kept_sha256", pa.array(hashes, rows.schema.field("kept_sha256").type))
    margins = [None if margin is None else float(f"{margin:.{_DIGITS}g}") for margin in rows["top2_margin"].to_pylist()]
    rows = _replaced(rows, "top2_margin", pa.array(margins, rows.schema.field("top2_margin").type))
    out.parent.mkdir(parents=True, exist_ok=True)
    write_parquet(rows, out, describer(folder), as_metadata(moments_of(folder, rows)))
    return rows.num_rows


def rotated(rows: pa.Table) -> list[bool]:
    """Which rows the gate makes again."""
    columns = rows.select(["task", "policy", "score", "budget", "sample"]).to_pydict()
    keys = key_of(columns)
    chosen = rotation(set(keys))
    return [sample in chosen[key] for key, sample in zip(keys, columns["sample"], strict=True)]


def pack_environments(folder: Path, out: Path) -> None:
    """Where the packed rows beside `out` were made, by the id that they have: in this folder, or as `out` says."""
    known = json.loads(out.read_text("utf-8")) if out.is_file() else {}
    known |= {file.stem: json.loads(file.read_text("utf-8")) for file in (folder / "environments").glob("*.json")}
    tables = [load_table(file, warn=lambda _: None) for file in out.parent.glob("*.parquet")]
    named = {name for table in tables for name in table["environment"].unique().to_pylist()}
    named |= {row.environment for part in out.parent.glob("*/rows") for row in read_rows(part.parent)}
    environments = {name: known[name] for name in sorted(named)}
    out.write_text(json.dumps(environments, indent=1, sort_keys=True) + "\n", "utf-8")


def copy_rows(folder: Path, out: Path, cells: Collection[str], kind: type[Curve] | type[KeptSets] = Curve) -> None:
    """Write a few rows, without seconds, and the curves or kept sets beside them, as a folder that reports read."""
    shutil.rmtree(out, ignore_errors=True)
    (out / "cells").mkdir(parents=True)
    for cell in cells:
        shutil.copy(folder / "cells" / f"{cell}.json", out / "cells")
    rows = [replace(row, **dict.fromkeys(_LEFT_OUT)) for row in read_rows(folder) if row.cell in cells]
    beside = [line for line in read_sidecar(folder, kind) if line.cell in cells]
    beside_rows, file = ("curves", "book.jsonl") if kind is Curve else ("kept", "kept.jsonl")
    for name, lines in (("rows", rows), (beside_rows, beside)):
        (out / name).mkdir()
        text = "".join(line.to_json() + "\n" for line in sorted(lines, key=lambda line: (line.cell, line.sample)))
        (out / name / file).write_text(text, "utf-8")


def _replaced(rows: pa.Table, name: str, column: pa.Array | pa.ChunkedArray) -> pa.Table:
    return rows.set_column(rows.schema.get_field_index(name), name, column)


def pack_all(known: RowSet, results: Path, parts: Sequence[Part]) -> None:
    """Pack the parts that a run has rows of, with those that share a file with them, and make the tables beside them;
    other files stay.
    """
    cells, out = read_parts(results), known.folder
    files = {part.file for part in parts if part.name in cells}
    sharing = (part for part in known.parts.values() if part.file in files and part.name in cells)
    for name, together in grouped(sharing, lambda part: part.file).items():
        part, own = together[0], {cell for part in together for cell in cells[part.name]}
        if part.book or part.kept != "none":
            copy_rows(results, out / name, own, Curve if part.book else KeptSets)
            continue
        file = out / f"{name}.parquet"
        count = pack(results, file, own, max(part.samples for part in together))
        print(f"{known.name}: {file}: {count} rows, {file.stat().st_size} bytes")
        if name == "main" and name in known.gated:
            pack(results, out / GATE, own, part.samples, gate=True)
    pack_environments(results, out / "environments.json")
    show(known)


def show(known: RowSet) -> None:
    """The tables of the packed rows."""
    from kvbench.report.tables.table import print_table

    for name, where in known.tables.items():
        rows = str(known.folder / "main.parquet")
        print_table(rows, "markdown", known.folder / f"{name}.md", warn=print, where=where)
