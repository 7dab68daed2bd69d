"""Rows of a run as the small files that are committed.

Left out are the seconds (this page is about outcomes; docs/performance.md is about time), the hash of an answer whose
text is there, and the hashes of kept sets but those of the first samples, which the gate compares.
"""

import json
import shutil
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from kvbench.records import COLUMNS, Curve, KeptSets, read_rows, read_sidecar
from kvbench.report.rows import describer, load_table, write_parquet
from reference_results.sweeps import Part
from reference_results.workers import read_parts

GATED = 3
"""Samples of each task that the gate runs again."""
_LEFT_OUT = ("prefill_seconds", "evict_seconds", "decode_seconds", "output_sha256")
_DIGITS = 3
OWN = ["null", "attn", "lava", "cake", "kvzip"]
BUDGETS = ["1.0", "0.05", "0.1", "0.2", "0.4", "0.6", "0.8"]
"""The others are smaller, or there to compare equal bytes: docs/claims.md does."""
TABLES = {
    "table": {"budget": BUDGETS, "store": ["flat"]},
    "first-screen": {
        "budget": ["1.0", "0.1", "0.2", "0.4", "0.6"],
        "task": ["ruler/fwe"],
        "score": [*OWN, "obcache_joint"],
        "policy": [
            "full",
            "streaming_llm",
            "h2o",
            "tova",
            "snapkv",
            "ada_snapkv",
            "pyramidkv",
            "cake",
            "lava",
            "kvzip",
        ],
    },
}
"""Markdown tables that are written beside the rows, and which rows they show."""


def pack(folder: Path, out: Path, cells: Collection[str], samples: int) -> int:
    """Write the rows of some cells of a folder to a Parquet file, sorted; returns how many. `samples`: so many of each
    cell at most. Raises FileNotFoundError where there are none.
    """
    rows = load_table(folder, COLUMNS)
    chosen = np.isin(rows["cell"].to_numpy(), list(cells)) & (rows["sample"].to_numpy() < samples)
    rows = rows.filter(pa.array(chosen))
    rows = rows.sort_by([(name, "ascending") for name in ("task", "policy", "score", "budget", "cell", "sample")])
    for name in _LEFT_OUT:
        rows = _replaced(rows, name, pa.nulls(rows.num_rows, rows.schema.field(name).type))
    pairs = zip(rows["kept_sha256"].to_pylist(), rows["sample"].to_pylist(), strict=True)
    hashes = [digest if sample < GATED else None for digest, sample in pairs]
    rows = _replaced(rows, "kept_sha256", pa.array(hashes, rows.schema.field("kept_sha256").type))
    margins = [None if margin is None else float(f"{margin:.{_DIGITS}g}") for margin in rows["top2_margin"].to_pylist()]
    rows = _replaced(rows, "top2_margin", pa.array(margins, rows.schema.field("top2_margin").type))
    out.parent.mkdir(parents=True, exist_ok=True)
    write_parquet(rows, out, describer(folder))
    return rows.num_rows


def pack_environments(folder: Path, out: Path) -> None:
    """Where the packed rows beside `out` were made, by the id that they have: in this folder, or as `out` says."""
    known = json.loads(out.read_text("utf-8")) if out.is_file() else {}
    known |= {file.stem: json.loads(file.read_text("utf-8")) for file in (folder / "environments").glob("*.json")}
    tables = [load_table(file) for file in out.parent.glob("*.parquet")]
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


def pack_all(results: Path, parts: Sequence[Part], out: Path) -> None:
    """Pack the parts that a run has rows of, and make the tables of the README; files of other parts stay."""
    cells = read_parts(results)
    for part in (part for part in parts if part.name in cells):
        if part.book or part.kept != "none":
            copy_rows(results, out / part.name, cells[part.name], Curve if part.book else KeptSets)
            continue
        file = out / f"{part.name}.parquet"
        count = pack(results, file, cells[part.name], part.samples)
        print(f"reference: {file}: {count} rows, {file.stat().st_size} bytes")
    pack_environments(results, out / "environments.json")
    show(out)


def show(out: Path) -> None:
    """The tables of the packed rows."""
    from kvbench.report.tables.table import print_table

    for name, where in TABLES.items():
        print_table(str(out / "main.parquet"), "markdown", out / f"{name}.md", warn=print, where=where)
