"""Rows of schema 9 become rows of schema 1, whose cells have the names that the product's own plan gives them."""

import csv
import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from kvbench.config.entries import options
from kvbench.config.overrides import parse
from kvbench.records import KeptSets, ResultsFolder, Row, read_kept, read_rows
from kvbench.records.columns import table_of
from kvbench.records.moments import Span, as_metadata, spans_of
from kvbench.records.parquet import to_parquet
from kvbench.records.parquet_rows import metadata_of
from kvbench.records.row import with_checksum
from kvbench.report.rows import describer, load
from kvbench.run.cell import Cell, canonical, digest
from kvbench.work.planned import cells_of
from scripts import convert_rows
from tests.composed import needed

NAMES = {
    "h2o_obcache": "h2o",
    "h2o": "h2o_full",
    "h2o_kvzip": "h2o_max",
    "tova_obcache": "tova",
    "tova": "tova_layer",
}
"""What descriptions of schema 9 called policies."""
LEFT_OUT = (
    ("budget_span", "prompt"),
    ("most", None),
    ("splits", "candidates"),
    ("queries", "window"),
    ("window_skips", 0),
    ("answer_budget", None),
    ("decode_counts", "answer"),
)
"""Settings of policies and schedules that descriptions of schema 9 left out."""
LEFT_OUT_OF_TASKS = (
    ("temperature", 0.0),
    ("top_p", 1.0),
    ("samples_per_prompt", 1),
    ("turns", "none"),
    ("texts", "fixed"),
    ("reasoning", "auto"),
)
WORDS = ("policy=snapkv,h2o", "protocol=common", "budget=0.2", "task=ruler/niah_single_1")
LAYERS = ("policy=snapkv", "policy.layers={kind:preference,tau1:1.0,tau2:1.0}", "score=caote", "task=ruler/vt")
QUIET = pytest.fail


def cells(*words: str) -> list[Cell]:
    return cells_of(parse(words), set())[1]


def without(item: Any, left_out: tuple[tuple[str, Any], ...]) -> Any:
    if not isinstance(item, dict):
        return item
    return {name: without(value, left_out) for name, value in item.items() if (name, value) not in left_out}


def earlier(cell: Cell) -> dict[str, Any]:
    """The description of a cell as schema 9 had it."""
    description = json.loads(canonical(cell.description))
    policy = without(description["policy"], LEFT_OUT)
    policy |= {"takes": policy.pop("accepts"), "name": NAMES.get(policy["name"], policy["name"])}
    return description | {
        "policy": policy,
        "schedule": without(description["schedule"], LEFT_OUT),
        "task": without(description["task"], LEFT_OUT_OF_TASKS),
        "score": without(description["score"], (("merge", "attention"),)),
    }


def rows_before(of_cells: list[Cell], make_row: Any) -> tuple[list[Row], dict[str, dict[str, Any]]]:
    """Two rows of each cell as schema 9 had them, and the descriptions of the cells by their names of then."""
    described = {digest(canonical(earlier(cell))): earlier(cell) for cell in of_cells}
    rows = []
    for cell, (name, description) in zip(of_cells, described.items(), strict=True):
        label = cell.eviction.policy_label.replace(" layers.queries=window layers.splits=candidates", "")
        words = {"task": description["task"]["name"], "task_version": description["task"]["version"]}
        words |= {"policy": label, "score": cell.eviction.score_label, "budget": str(cell.budget), "seed": cell.seed}
        words |= {
            "context_length": description["task"]["context_length"],
            "protocol": cell.eviction.protocol,
            "variant": None,
        }
        rows += [make_row(name, sample, **words, value=0.5, prediction="caf\u00e9") for sample in range(2)]
    return rows, described


def converted(rows: list[Row], of_cells: list[Cell]) -> list[Row]:
    """The rows as schema 1 has them, by the plan of today."""
    return [
        replace(row, cell=cell.id, policy=cell.eviction.policy_label)
        for cell, pair in zip(of_cells, zip(rows[::2], rows[1::2], strict=True), strict=True)
        for row in pair
    ]


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "earlier_cells.csv"
    path.write_text("earlier,now\n0123456789abcdef,fedcba9876543210\n")
    monkeypatch.setattr(convert_rows, "TABLE", path)
    return path


def names_in(table: Path) -> Mapping[str, str]:
    with table.open() as file:
        return {line["earlier"]: line["now"] for line in csv.DictReader(file)}


@pytest.fixture
def make_row() -> Any:
    def make(cell: str, sample: int, **columns: Any) -> Row:
        columns = {"model": "reference", "layout": "kv_heads", "schedule": "prompt"} | columns
        return Row(cell=cell, sample=sample, **columns)

    return make


def test_a_parquet_file_of_schema_9_is_read_after_it(tmp_path: Path, table: Path, make_row: Any) -> None:
    of_cells = cells(*WORDS) + cells(*LAYERS)
    rows, described = rows_before(of_cells, make_row)
    rows[0] = replace(rows[0], metric="string_match_all")
    rows[1] = replace(rows[1], metric="nll", value=2.5)
    rows[2] = replace(rows[2], metric="seconds_per_token", unit="seconds", better="lower")
    first, *_ = described
    metadata = metadata_of(described) | {b"kvbench.schema": b"9"}
    span = Span(datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC))
    metadata |= as_metadata({first: span})
    path = tmp_path / "rows.parquet"
    path.write_bytes(to_parquet(table_of(rows), metadata))
    with pytest.raises(ValueError, match="schema 9; this kvbench reads schema 1"):
        load(path, QUIET)

    assert convert_rows.main([str(path)]) == 0
    expected = converted(rows, of_cells)
    expected[0] = replace(expected[0], unit="share", better="higher")
    expected[1] = replace(expected[1], unit="nats per token", better="lower")
    assert load(path, lambda text: None) == expected
    for cell in of_cells:
        assert describer(path)(cell.id) == json.loads(canonical(cell.description))
    assert spans_of(path, table_of(expected)) == {of_cells[0].id: span}
    now = [cell.id for cell in of_cells]
    assert names_in(table) == {"0123456789abcdef": "fedcba9876543210", **dict(zip(described, now, strict=True))}


def test_a_folder_of_schema_9_is_read_after_it(tmp_path: Path, table: Path, make_row: Any) -> None:
    of_cells = cells(*WORDS) + cells(*LAYERS)
    rows, described = rows_before(of_cells, make_row)
    folder = tmp_path / "out"
    for room in ("cells", "rows", "kept", "finished"):
        (folder / room).mkdir(parents=True)
    for name, description in described.items():
        (folder / "cells" / f"{name}.json").write_text(json.dumps(description, indent=1))
    lines = [json.loads(row.to_json()) | {"schema": 9, "checksum": None} for row in rows]
    lines = [{name: value for name, value in line.items() if name != "checksum"} for line in lines]
    (folder / "rows" / "a.jsonl").write_text("".join(with_checksum(json.dumps(line)) + "\n" for line in lines))
    kept = KeptSets(rows[0].cell, 0, 2, (0,), ((1,),), ((b"\x80",),))
    (folder / "kept" / "a.jsonl").write_text(kept.to_json() + "\n")
    (folder / "finished" / "a.json").write_text('{"rows": 6, "crc32": "00000000"}')

    assert convert_rows.main([str(folder)]) == 0
    assert read_rows(folder, QUIET) == load(folder, lambda text: None) == converted(rows, of_cells)
    assert read_kept(folder, QUIET) == {(of_cells[0].id, 0): replace(kept, cell=of_cells[0].id)}
    now = [cell.id for cell in of_cells]
    assert sorted(path.stem for path in (folder / "cells").iterdir()) == sorted(now)
    for cell in of_cells:
        assert ResultsFolder(folder).read_cell(cell.id) == json.loads(canonical(cell.description))
    assert dict(zip(described, now, strict=True)).items() <= names_in(table).items()


@pytest.mark.parametrize("protocol", ["paper", "common"])
def test_every_policy_gets_the_description_of_the_plan(protocol: str) -> None:
    for name in options("policy"):
        (cell,) = cells(f"policy={name}", f"protocol={protocol}", *needed("policy", name))
        assert convert_rows.described(earlier(cell)) == json.loads(canonical(cell.description)), name


@pytest.mark.parametrize("part", ["variants", "sensitivity", "kept"])
def test_published_cells_have_the_names_of_the_plan(part: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The table of the cells that were converted says of each cell of a part what the plan of today says."""
    monkeypatch.syspath_prepend(str(Path(convert_rows.__file__).parent))
    from reference_results import sweeps  # type: ignore[import-not-found]

    names = names_in(convert_rows.TABLE)
    planned = [
        cell
        for words in sweeps.row_set("reference").parts[part].settings(tmp_path)
        for cell in cells_of(parse(words), set())[1]
    ]
    assert planned
    for cell in planned:
        assert names.get(digest(canonical(earlier(cell)))) == cell.id, cell.eviction.policy_label
