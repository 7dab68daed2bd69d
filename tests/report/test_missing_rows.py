"""Rows that were asked for and are not there: every reader of rows says how many."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kvbench.cli.main import main
from kvbench.records import Recorder, ResultsFolder, Row
from kvbench.report.rows import load, load_table


def told(folder: Path, **where: list[str]) -> list[str]:
    messages: list[str] = []
    load_table(folder, warn=messages.append, where=where)
    return messages


@pytest.fixture
def asked(cell: Callable[..., list[Row]], results: Callable[..., Path]) -> Path:
    """Two cells of four rows, in a file each, of which eight rows were asked for."""
    rows = {policy: cell([1.0] * 4, policy) for policy in ("snapkv", "h2o")}
    folder = results(rows["snapkv"])
    with Recorder(folder) as recorder:
        recorder.append(rows["h2o"])
    ResultsFolder(folder).write_sweep(["task.samples=4"], {members[0].cell: 4 for members in rows.values()})
    return folder


def test_a_whole_folder_and_one_of_which_nothing_was_asked_say_nothing(asked: Path) -> None:
    assert told(asked) == []
    (sweep,) = (asked / "sweeps").iterdir()
    sweep.write_text(sweep.read_text().replace(": 4", ": 5", 1))
    (line,) = told(asked)
    assert f"{sweep} was changed: its name is not the hash of its content" in line, "named, and not believed"
    sweep.unlink()
    assert told(asked) == []


def test_more_samples_than_there_are_rows(asked: Path) -> None:
    one = load(asked)[0].cell
    ResultsFolder(asked).write_sweep(["task.samples=9"], {one: 9})
    (line,) = told(asked)
    assert line.startswith(f"{asked}: 5 of 13 rows are missing; ")
    assert told(asked, policy=["h2o"]) == [] and "5 of 9 rows" in told(asked, policy=["snapkv"])[0]


def test_a_file_of_rows_that_is_gone_is_named(asked: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lost = sorted((asked / "rows").iterdir())[1]
    lost.unlink()
    (line,) = told(asked)
    assert f"4 of 8 rows are missing, and 1 file of rows: {lost.stem}; kvbench status" in line
    for command in (["report", "table"], ["report", "cost"], ["export", "--format", "markdown"]):
        capsys.readouterr()
        assert main([*command, "--results", str(asked)]) == 0
        assert "4 of 8 rows are missing" in capsys.readouterr().err
        assert main([*command, "--results", str(asked), "--partial"]) == 0
        assert capsys.readouterr().err == ""
    with Recorder(asked) as recorder:  # rows beyond the samples asked for do not stand for missing ones
        recorder.append([replace(row, sample=row.sample + 4) for row in load(asked, lambda text: None)])
    assert "4 of 8 rows are missing" in told(asked)[0]


def test_a_request_that_lacks_rows_is_withdrawn_and_others_stay(
    asked: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, one = ResultsFolder(asked), load(asked)[0].cell
    whole = folder.read_requests()
    folder.write_sweep(["policy=quest task"], {one: 9, "never": 5})
    assert main(["cancel", "--results", str(asked), "--requests"]) == 0
    assert "withdrew the request of 14 rows, of which 10 are missing: 'policy=quest task'" in capsys.readouterr().err
    assert folder.read_requests() == whole and told(asked) == [] and len(load(asked)) == 8
    assert main(["cancel", "--results", str(asked), "--requests"]) == 0
    assert "all rows that were requested are there" in capsys.readouterr().err
