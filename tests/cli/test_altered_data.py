"""Data files that are not those of the lock: refused, or read when asked, and then every row and report says so."""

import json
import os
import shutil
from pathlib import Path

import pytest

from kvbench.records import Recorder, ResultsFolder, read_rows
from kvbench.report.row_warnings import tell_altered
from kvbench.report.rows import load_table
from kvbench.run import local
from kvbench.support.whole_file import sha256_of
from kvbench.tasks.data import record
from kvbench.tasks.data.record import PullRecord, altered
from tests.cli.conftest import Command

ROW = {"question": "Two and two?", "answer": "So. #### 4"}
FILE = "gsm8k/test.jsonl"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with a GSM8K that is not the one of the lock."""
    path = tmp_path / "data" / FILE
    path.parent.mkdir(parents=True)
    path.write_text((json.dumps(ROW) + "\n") * 3)
    return tmp_path / "data"


def test_a_file_that_differs_is_refused_as_verify_says(
    kvbench: Command, tiny: tuple[str, ...], data: Path, tmp_path: Path
) -> None:
    assert kvbench("data", "verify", "gsm8k", f"data.root={data}").code == 3
    for command in ("plan", "run"):
        refused = kvbench(command, *tiny, "policy=full", "task=gsm8k", f"data.root={data}")
        assert refused.code == 3 and refused.err.count("\n") == 1, refused.err
        assert f"{data / FILE} of gsm8k differs" in refused.err and "data.verify=false" in refused.err
        assert f"kvbench data pull gsm8k data.root={data} --replace" in refused.err
    assert not (tmp_path / "out").exists()


def test_rows_and_reports_of_a_file_that_differs_say_so(kvbench: Command, tiny: tuple[str, ...], data: Path) -> None:
    settings = (*tiny, "policy=full", "task=gsm8k", "task.least_tokens=1", f"data.root={data}", "data.verify=false")
    finished = kvbench("run", *settings)
    assert finished.code == 0 and f"warning: {data / FILE} of gsm8k differs" in finished.err
    row, *_ = read_rows("out")
    assert (ResultsFolder("out").read_cell(row.cell) or {})["task"]["data_altered"] == [FILE]
    assert kvbench("export", "--results", "out", "--format", "parquet", "--out", "rows.parquet").code == 0
    for source in ("out", "rows.parquet"):
        table = kvbench("report", "table", "--results", source)
        assert table.code == 0 and f"(data.verify=false): {FILE}" in table.err


def test_a_file_is_compared_with_the_record_of_its_download(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("a")
    digest = sha256_of(tmp_path / "mine.txt")
    assert altered(tmp_path, ("mine.txt",), "1") == (), "neither lock nor record knows it"
    for number, (known, expected) in enumerate([(digest, ()), ("0" * 64, ("mine.txt",))]):
        entry = PullRecord(known, 1, "here", None, False, known, "now").__dict__
        (tmp_path / record.RECORD).write_text(json.dumps({"files": {"mine.txt": entry}}))
        assert altered(tmp_path, ("mine.txt",), f"2{number}") == expected


def test_reports_of_other_rows_say_nothing(tmp_path: Path, tiny: tuple[str, ...], kvbench: Command) -> None:
    assert kvbench("run", *tiny, "policy=full", "task=ruler/niah_single_1").code == 0
    messages: list[str] = []
    tell_altered("out", load_table("out"), ResultsFolder("out").read_cell, messages.append)
    assert not messages


def test_verify_is_true_or_false(kvbench: Command) -> None:
    for value in ("5x", "{}"):
        refused = kvbench("plan", "policy=full", f"data.verify={value}")
        assert refused.code == 2 and "data.verify=" in refused.err
    assert "lists 2 values" in kvbench("plan", "policy=full", "data.verify=true,false").err


@pytest.mark.parametrize("how", ["in place", "replaced", "same content"])
def test_rows_of_a_file_that_changes_meanwhile_are_not_recorded(
    kvbench: Command, tiny: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Also if its size and the time of its change stay."""
    file, append = tmp_path / "mine.jsonl", Recorder.append

    def write(context: str) -> str:
        return "".join(json.dumps({"context": f"{context} {n}.", "answers": ["a"]}) + "\n" for n in range(4))

    def change_then_append(recorder: Recorder, *rows: object) -> None:
        append(recorder, *rows)  # type: ignore[arg-type]
        before, text = file.stat(), write("Words" if how == "same content" else "Other")
        if how == "in place":
            file.write_text(text)
        else:
            (tmp_path / "new").write_text(text)
            (tmp_path / "new").replace(file)
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))

    file.write_text(write("Words"))
    command = ("run", *tiny, "policy=full", "task=jsonl", f"task.path={file}", "task.samples=4")
    with monkeypatch.context() as patched:
        patched.setattr(Recorder, "append", change_then_append)
        finished = kvbench(*command)
    if how == "same content":
        assert finished.code == 0 and len(read_rows("out")) == 4
        return
    assert finished.code == 3 and finished.err.count("has changed while it was read") == 1
    (first,) = read_rows("out")
    assert kvbench(*command).code == 0
    new = [row for row in read_rows("out") if row.cell != first.cell]
    assert len(new) == 4 and len(read_rows("out")) == 5


def test_a_model_that_changes_while_it_is_loaded_has_no_rows(
    kvbench: Command, tiny: tuple[str, ...], tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, load = shutil.copytree(tiny_model, tmp_path / "model"), local.load

    def change_then_load(*arguments: object) -> object:
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 0.5}))
        return load(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(local, "load", change_then_load)
    refused = kvbench("run", *tiny, "policy=full", f"model.path={model}")
    assert refused.code == 3 and "has changed while it was read" in refused.err
    assert not list((tmp_path / "out" / "rows").glob("*"))
