"""`kvbench compare` and `kvbench gate` on rows written by hand: no model is loaded."""

import json
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest

from kvbench.records import Recorder, ResultsFolder, Row, read_rows
from kvbench.records.row import with_checksum
from tests.cells import name_of
from tests.cli.conftest import Command


def rows(policy: str, right: int, n: int = 30, **columns: object) -> list[Row]:
    columns = {
        "model": "reference",
        "task": "ruler/niah_single_1",
        "task_version": "1",
        "context_length": 512,
        "score": "attn",
        "budget": "0.1",
        "variant": "paper",
        "layout": "kv_heads",
        "schedule": "prompt",
        "seed": 42,
        "metric": "string_match_all",
        "code": "c0de00000000",
        "cell": f"{policy}-{columns.get('budget', '0.1')}".replace(".", "_"),
    } | columns
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
    done = kvbench("compare", "--results", str(results), "policy=snapkv", "policy=h2o_obcache", "--format", "json")
    tree = json.loads(done.out)
    assert (done.code, done.err) == (0, "")
    assert [(line["budget"], line["n"], line["verdict"]) for line in tree["lines"]] == [
        ("0.1", 30, "worse"),
        ("0.2", 30, "worse"),
    ]
    assert tree["overall"] is None and any("lines differ in settings" in note for note in tree["notes"])


def test_lines_of_one_window_have_an_overall_line(kvbench, tmp_path: Path) -> None:
    cells = (rows(policy, 20, budget=budget) for policy in ("snapkv", "h2o_obcache") for budget in ("0.1", "0.2"))
    one = folder(tmp_path / "one", *cells)
    done = kvbench("compare", "--results", str(one), "policy=snapkv", "policy=h2o_obcache", "--format", "json")
    assert json.loads(done.out)["overall"]["n"] == 60


def test_a_setting_of_cells_selects_too(kvbench, results: Path) -> None:
    done = kvbench(
        "compare", "--results", str(results), "policy=snapkv,policy.window=32", "policy=h2o_obcache,budget=0.2"
    )
    assert done.code == 0 and "-60.0" in done.out


def test_a_cell_of_one_side_only_is_named(kvbench, results: Path) -> None:
    done = kvbench("compare", "--results", str(results), "policy=snapkv", "policy=h2o_obcache,budget=0.2")
    assert done.code == 0 and "only in A: budget 0.1" in done.out


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


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["policy=snapkv"], 2, "compare takes two folders"),
        ([], 2, ""),
        (["policy=snapkv", "policy=snapkv"], 2, "a row cannot be compared with itself"),
        (["policy=snapkv", "polcy=h2o_obcache"], 2, "rows have no column 'polcy'"),
        (["policy=snapkv", "policy=h2o_obcache,policy=x"], 2, "names 'policy' twice"),
        (["policy=snapkv", "policy=h2o_obcache", "alpha=2"], 2, "alpha=2: allowed: a number between 0 and 1"),
        (["policy=snapkv", "policy=h2o_obcache", "--format", "xml"], 2, "unknown format 'xml'"),
        (
            ["policy=snapkv", "policy=h2o_obcache", "--frmat", "csv"],
            2,
            "compare: unknown flag --frmat: did you mean --format?",
        ),
        (
            ["policy=snapkv", "policy=tova_obcache"],
            4,
            "policy=tova_obcache: no row has policy=tova_obcache; the rows have h2o_obcache, snapkv",
        ),
    ],
)
def test_bad_words_are_one_clear_line(kvbench, results: Path, words: list[str], code: int, message: str) -> None:
    done = kvbench("compare", *(["--results", str(results)] if words else []), *words)
    assert done.code == code and message in done.err and len(done.err.splitlines()) <= 1


def test_a_folder_without_rows_is_missing_data(kvbench, results: Path) -> None:
    assert kvbench("compare", str(results), "nowhere").code == 3


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


def test_two_outcomes_of_one_sample_are_refused(kvbench, results: Path) -> None:
    with Recorder(results) as recorder:
        first = next(row for row in read_rows(results) if row.policy == "snapkv" and row.budget == "0.1")
        recorder.append([replace(first, value=0.5)])
    done = kvbench("compare", "--results", str(results), "policy=snapkv,budget=0.1", "policy=h2o_obcache,budget=0.1")
    assert done.code == 2 and "sample 0 has two outcomes" in done.err


def test_several_models_and_tasks_are_paired_and_told_apart(kvbench, tmp_path: Path) -> None:
    cells = [
        rows(policy, right, model=model, task=task, cell=f"{policy}{model}{task[-2:]}")
        for policy, right in (("snapkv", 25), ("h2o_obcache", 5))
        for model in ("small", "large")
        for task in ("ruler/vt", "ruler/fw")
    ]
    folder(tmp_path / "all", *cells)
    done = kvbench("compare", "--results", "all", "policy=snapkv", "policy=h2o_obcache", "--format", "json")
    lines = json.loads(done.out)["lines"]
    assert [(line["model"], line["task"], line["n"]) for line in lines] == [
        (model, task, 30) for model in ("large", "small") for task in ("ruler/fw", "ruler/vt")
    ]


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


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--baseline", "one"], 2, "gate: the following arguments are required: --current"),
        (["--baseline", "one", "--current", "one"], 2, "are the same folder"),
        (["--baseline", "one", "--current", "none"], 3, "does not exist"),
        (["--baseline", "one", "--current", "two", "policy=x"], 4, "one: no row has policy=x"),
        (["--baseline", "one", "--current", "two", "kept=perhaps"], 2, "allowed: kept=fail, kept=note"),
        (
            ["--baseline", "one", "--current", "two", "policy=snapkv", "policy=h2o_obcache"],
            2,
            "gate takes one selection",
        ),
        (["--baseline", "one", "--current", "two", "by=polcy"], 2, "cells have no column 'polcy'"),
        (["--baseline", "one", "--current", "two", "--min-effect", "5"], 2, "--min-effect 5: allowed: points of all"),
        (["--baseline", "one", "--current", "two", "--alarm", "0,nan"], 2, "--alarm 0,nan: allowed: points of all"),
        (["--baseline", "one", "--current", "two", "--junit", "no/where.xml"], 2, "cannot write"),
    ],
)
def test_bad_words_of_the_gate(kvbench, results: Path, words: list[str], code: int, message: str) -> None:
    folder(results.parent / "two", rows("snapkv", 25))
    done = kvbench("gate", *words)
    assert done.code == code and message in done.err, done.err


def test_windows_that_differ_come_first(kvbench: Command, tiny: tuple[str, ...]) -> None:
    assert kvbench("run", *tiny, "policy=h2o_obcache,lava", "budget=0.3", "protocol=paper").code == 0
    compared = kvbench("compare", "--results", "out", "policy.name=h2o_obcache", "policy.name=lava")
    note = " ".join(compared.out.split()).partition("Settings that differ between A and B: ")[2]
    assert note.startswith("policy.pool.kind, policy.pool.size, policy.recent, policy.window"), compared.out
