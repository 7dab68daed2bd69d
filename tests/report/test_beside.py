"""Curves, timings and kept sets beside rows: each row has its own, none is lost or doubled without a word."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kvbench.records import Curve, KeptSets, Recorder, Row, Timing
from kvbench.report.beside import lines_beside


def curve(row: Row, total: float = 6.0) -> Curve:
    return Curve(row.cell, row.sample, "nll", (0, 1, 2), (total - 2.0, 2.0), (1, 1))


def timing(row: Row, held: float = 8.0) -> Timing:
    return Timing(row.cell, row.sample, {"held_bytes": held}, (0.5,))


@pytest.fixture
def texts(cell: Callable[..., list[Row]]) -> list[Row]:
    return [replace(row, metric="nll", value=3.0) for row in cell([0.0] * 3)]


def record(folder: Path, rows: list[Row], name: str, lines: list[Curve] | list[Timing] | list[KeptSets]) -> Path:
    with Recorder(folder) as recorder:
        recorder.append(rows, {name: [line.to_json() for line in lines]})
    assert recorder.path is not None
    return folder / name / recorder.path.name


def told(folder: Path, kind: type) -> list[str]:
    messages: list[str] = []
    lines_beside(folder, kind, messages.append)
    return messages


def test_every_row_has_the_line_of_its_own_file(texts: list[Row], tmp_path: Path) -> None:
    record(tmp_path, texts, "curves", [curve(row) for row in texts])
    again = [replace(texts[0], code="0" * 12, value=4.0)]  # made again by other code
    record(tmp_path, again, "curves", [curve(again[0], 8.0)])
    lines = lines_beside(tmp_path, Curve, pytest.fail)
    assert [lines[row.cell, row.sample].sums for row in texts] == [(6.0, 2.0), (4.0, 2.0), (4.0, 2.0)]
    assert lines_beside(tmp_path / "nowhere", Curve, pytest.fail) == {}


@pytest.mark.parametrize("where", ["same file", "another file"])
def test_two_lines_of_a_row_that_differ_are_refused(texts: list[Row], tmp_path: Path, where: str) -> None:
    rows = [replace(row, metric="seconds_per_token") for row in texts]
    file = record(tmp_path, rows, "timings", [timing(row) for row in rows])
    other = file if where == "same file" else file.with_name("other.jsonl")
    with other.open("a") as stream:
        stream.write(timing(rows[1]).to_json() + "\n")
    assert len(lines_beside(tmp_path, Timing, lambda text: None)) == 3  # the same line twice is one
    with other.open("a") as stream:
        stream.write(timing(rows[1], 9.0).to_json() + "\n")
    if where == "another file":
        file.write_text("")
    with pytest.raises(ValueError, match=f"sample {rows[1].sample} has (two )?lines .*differ; remove the wrong line"):
        told(tmp_path, Timing)


def test_a_curve_that_is_not_of_its_row_is_refused(texts: list[Row], tmp_path: Path) -> None:
    record(tmp_path, texts, "curves", [*map(curve, texts[:2]), curve(texts[2], 6.1)])
    with pytest.raises(ValueError, match=r"sample 2 has a curve whose mean is not the value of its row, 3\.0"):
        told(tmp_path, Curve)


def test_lost_lines_are_counted(texts: list[Row], tmp_path: Path) -> None:
    failed = replace(texts[0], sample=7, value=None, error="too long")  # has no curve
    file = record(tmp_path, [*texts, failed], "curves", [curve(row) for row in texts])
    assert told(tmp_path, Curve) == []
    file.write_text(file.read_text().partition("\n")[0] + "\n")
    assert told(tmp_path, Curve)[-1] == f"{tmp_path}: 2 of 3 curves are missing; their rows are there"
    file.unlink()
    assert told(tmp_path, Curve)[-1] == f"{tmp_path}: 3 of 3 curves are missing; their rows are there"


def test_lost_kept_sets_are_counted_where_they_were_asked_for(texts: list[Row], tmp_path: Path) -> None:
    rows = [replace(row, kept_sha256="ab") for row in texts]
    sets = [KeptSets(row.cell, row.sample, 8, (0,), ((1,),), None) for row in rows]
    record(tmp_path, [replace(row, sample=row.sample + 10) for row in rows], "kept", [])
    assert told(tmp_path, KeptSets) == []
    file = record(tmp_path, rows, "kept", sets)
    assert told(tmp_path, KeptSets) == []
    file.write_text("".join(f"{line.to_json()}\n" for line in sets[:1]))
    assert told(tmp_path, KeptSets)[-1] == f"{tmp_path}: 2 of 3 kept sets are missing; their rows are there"
