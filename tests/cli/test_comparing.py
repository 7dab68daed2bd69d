"""`kvbench compare` and `kvbench gate` on rows written by hand: no model is loaded."""

import json
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest

from kvbench.records import Recorder, ResultsFolder, Row
from kvbench.records.row import with_checksum
from tests.cells import name_of


def rows(policy: str, right: int, n: int = 30, **columns: object) -> list[Row]:
    where = {"model": "reference", "task": "ruler/niah_single_1", "task_version": "1", "context_length": 512}
    method = {"score": "attn", "budget": "0.1", "variant": "paper", "layout": "kv_heads", "schedule": "prompt"}
    fixed = {"seed": 42, "metric": "string_match_all", "code": "c0de00000000"}
    cell = f"{policy}-{columns.get('budget', '0.1')}".replace(".", "_")
    columns = {**where, **method, **fixed, "cell": cell} | columns
    return [Row(policy=policy, sample=i, value=float(i < right), **columns) for i in range(n)]  # type: ignore[arg-type]


def folder(path: Path, *cells: list[Row], windows: dict[str, int] | None = None) -> Path:
    with Recorder(path) as recorder:
        for cell in cells:
            window = (windows or {}).get(cell[0].cell, 16)
            settings = {"policy": {"window": window}, "model": {"dtype": "float32"}, "plugins": {cell[0].cell: None}}
            ResultsFolder(path).write_cell(name_of(settings), settings)
            recorder.append([replace(row, cell=name_of(settings)) for row in cell])
    return path


@pytest.fixture
def results(tmp_path: Path) -> Path:
    cells = (
        rows("snapkv", 25),
        rows("h2o_obcache", 10),
        rows("snapkv", 30, budget="0.2"),
        rows("h2o_obcache", 12, budget="0.2"),
    )
    return folder(tmp_path / "one", *cells, windows={"snapkv-0_2": 32})


def test_two_selections_of_one_folder(kvbench, results: Path) -> None:
    """By columns and by settings of cells."""
    done = kvbench("compare", "--results", str(results), "policy=snapkv", "policy=h2o_obcache", "--format", "json")
    tree = json.loads(done.out)
    assert (done.code, done.err) == (0, "")
    assert [(line["budget"], line["n"], line["verdict"]) for line in tree["lines"]] == [
        ("0.1", 30, "worse"),
        ("0.2", 30, "worse"),
    ]
    assert tree["overall"] is None and any("lines differ in settings" in note for note in tree["notes"])
    selections = "policy=snapkv,policy.window=32", "policy=h2o_obcache,budget=0.2"
    done = kvbench("compare", "--results", str(results), *selections)
    assert done.code == 0 and "-60.0" in done.out


def test_two_folders_with_and_without_selections(kvbench, results: Path, tmp_path: Path) -> None:
    other = folder(tmp_path / "two", rows("snapkv", 20), rows("h2o_obcache", 10))
    done = kvbench("compare", str(results), str(other), "--format", "csv")
    head, *lines = done.out.splitlines()
    assert done.code == 0 and len(lines) == 5 and head.startswith("line,model,task")
    chosen = kvbench("compare", str(results), str(other), "policy=snapkv,budget=0.1", "--format", "csv")
    assert len(chosen.out.splitlines()) == 2
    crossed = kvbench(
        "compare", str(results), str(other), "policy=snapkv,budget=0.2", "policy=h2o_obcache", "--out", "said.md"
    )
    assert crossed.code == 0 and crossed.out == "" and "-66.7" in Path("said.md").read_text()


def test_nothing_in_common_is_incomplete(kvbench, tmp_path: Path) -> None:
    failed = [replace(row, value=None, error="x") for row in rows("h2o_obcache", 0)]
    both = folder(tmp_path / "both", rows("snapkv", 9), failed)
    done = kvbench("compare", "--results", str(both), "policy=snapkv", "policy=h2o_obcache")
    assert done.code == 4 and "nothing was compared" in done.err and "30 failed" in done.out


def test_a_value_that_is_no_number_is_no_pair(kvbench, results: Path) -> None:
    (path,) = (results / "rows").glob("*.jsonl")
    lines = path.read_text().splitlines()
    lines[3] = Row.from_json(lines[3]).to_json().replace('"value": 1.0', '"value": null')
    path.write_text("".join(f"{with_checksum(line.rpartition(', ')[0] + '}')}\n" for line in lines))
    done = kvbench("compare", "--results", str(results), "policy=snapkv,budget=0.1", "policy=h2o_obcache,budget=0.1")
    assert done.code == 0 and "A: 1 without a value (sample 3): ruler/niah_single_1" in done.out


def test_the_gate_passes_and_fails_with_its_code_and_its_files(kvbench, results: Path, tmp_path: Path) -> None:
    same = folder(tmp_path / "same", rows("snapkv", 25), rows("h2o_obcache", 10), rows("snapkv", 30, budget="0.2"))
    few = "gate", "--baseline", str(results), "--current", str(same), "policy=snapkv"
    done = kvbench(*few)
    assert done.code == 5 and done.out.startswith("gate INCONCLUSIVE (regression)")
    assert "30 independent prompts show no loss below 32.2 points, asked for 20 points" in done.out
    done = kvbench(*few, "--min-effect", "40,40")
    assert done.code == 0 and done.out.startswith("gate passed")
    done = kvbench(*few, "--allow-undecided", "--junit", "few.xml", "--format", "json")
    tree = json.loads(done.out)
    assert (done.code, tree["verdict"], tree["passed"], tree["accepted"]) == (0, "inconclusive", False, True)
    assert set(tree["cells"].values()) == {"inconclusive"} and {test["verdict"] for test in tree["tests"]} == {
        "inconclusive"
    }
    assert [case.get("message") for case in ET.parse("few.xml").getroot().iter("skipped")].count(
        "nothing to check"
    ) == 8
    done = kvbench(*few, "by=policy", "--alarm", "1,1", "--summary", "few.md")
    assert done.code == 5 and "| snapkv | 60 | 30 |" in Path("few.md").read_text()
    files = "--junit", "gate.xml", "--summary", "gate.md", "--github"
    done = kvbench("gate", "--baseline", str(results), "--current", str(same), *files)
    assert done.code == 5
    assert "the cell is missing, 30 rows" in done.out and "::error title=kvbench gate%3A present::" in done.out
    assert [case.get("type") for case in ET.parse("gate.xml").getroot().iter("failure")] == ["present"]
    assert Path("gate.md").read_text().startswith("## gate FAILED (present)")
    worse = folder(tmp_path / "worse", *(rows("snapkv", 5, budget=budget) for budget in ("0.1", "0.2")))
    done = kvbench("gate", "--baseline", str(results), "--current", str(worse), "policy=snapkv", "--format", "json")
    assert done.code == 5 and {finding["check"] for finding in json.loads(done.out)["findings"]} == {"regression"}


def test_the_summary_of_a_github_step_grows(kvbench, results: Path, tmp_path: Path, monkeypatch) -> None:
    summary = tmp_path / "step.md"
    summary.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    same = folder(tmp_path / "same", rows("snapkv", 25))
    folders = "--baseline", str(results), "--current", str(same)
    kvbench("gate", *folders, "policy=snapkv,budget=0.1", "--summary", str(summary), "--min-effect", "40,40")
    assert summary.read_text().startswith("before\n## gate passed")
