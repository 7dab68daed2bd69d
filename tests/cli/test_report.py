"""`kvbench report`: what its words mean, and what it leaves where there is nothing to say."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kvbench.cli.main import commands, declared, main
from kvbench.records import Recorder, Row, read_rows
from tests.cli.conftest import Command


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two policies, two samples each."""
    settings = {"model": "m", "task": "t", "context_length": 512, "score": "attn"}
    settings |= {"budget": "0.1", "code": "c0de00000000"}
    blank = dict.fromkeys(("task_version", "variant", "layout", "schedule", "seed"))
    with Recorder(tmp_path / "runs") as recorder:
        for policy in ("h2o_obcache", "tova_obcache"):
            rows = [Row(cell=policy, sample=i, policy=policy, value=float(i), **settings, **blank) for i in range(2)]
            recorder.append(rows)
    return tmp_path / "runs"


def test_a_file_takes_its_format_from_its_name(kvbench: Command, folder: Path, tmp_path: Path) -> None:
    for name in ("rows.csv", "rows.parquet"):
        finished = kvbench("report", "rows", "--results", str(folder), "--out", name)
        assert (finished.code, finished.out, finished.err) == (0, "", f"kvbench: wrote {name}\n")
    assert (tmp_path / "rows.csv").read_text().startswith("cell,sample,model")
    parquet, runs = (kvbench("report", "rows", "--results", source).out for source in ("rows.parquet", "runs"))
    assert parquet == runs


def test_programs_read_the_table_of_a_run_too(kvbench: Command, folder: Path) -> None:
    printed = kvbench("report", "run", "--results", str(folder), "--format", "json").out
    assert {cell["policy"] for cell in json.loads(printed)} == {"h2o_obcache", "tova_obcache"}


POLICIES = "policy=h2o_obcache policy=tova_obcache"
OUT = {
    "report": ("table", "rows", "cost", "html", "plot bars"),
    "compare": (POLICIES,),
    "export": ("--format junit", "--format parquet"),
    "merge": ("runs other",),
}
"""Lines without their --out. Those of the commands of `OUT_ELSEWHERE` are tried by the tests of these."""
OUT_ELSEWHERE = {"audit", "board", "claims", "paper", "probe", "prompts", "recommend"}


def test_every_out_is_tried() -> None:
    named = {command for command in commands() if "--out" in declared(command).flags()}
    assert named == OUT.keys() | OUT_ELSEWHERE


@pytest.mark.parametrize("line", [f"{command} {more}" for command, lines in OUT.items() for more in lines])
def test_what_is_written_is_named(kvbench: Command, folder: Path, tmp_path: Path, line: str) -> None:
    suffix = {"plot bars": ".svg", "html": ".html", "runs other": "", "--format parquet": ".parquet", "rows": ".csv"}
    out = f"made{next((ends for words, ends in suffix.items() if words in line), '.md')}"
    (tmp_path / "other").mkdir()
    with Recorder(tmp_path / "other") as recorder:
        recorder.append([replace(row, sample=row.sample + 2) for row in read_rows(folder)])
    source = [] if line.startswith("merge") else ["--results", str(folder)]
    finished = kvbench(*line.split(), *source, "--out", out)
    assert finished.code == 0 and Path(out).exists()
    assert out in (finished.err if source else finished.out)


def test_a_setting_that_is_given_twice_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "policy=snapkv", "budget=0.1", "policy=h2o"]) == 2
    said = capsys.readouterr().err
    assert "policy is given twice, as snapkv and as h2o: write one of them, or a list, policy=snapkv,h2o" in said
    assert said.count("\n") == 1


def test_an_empty_selection_is_said_and_leaves_nothing(kvbench: Command, folder: Path, tmp_path: Path) -> None:
    said = "kvbench: nothing to report: no row has policy=snapkv; the rows have h2o_obcache, tova_obcache\n"
    for what in ("table", "rows"):
        finished = kvbench("report", what, "--results", str(folder), "policy=snapkv", "--out", "out.csv")
        assert (finished.code, finished.out, finished.err) == (4, "", said)
        assert not (tmp_path / "out.csv").exists()
