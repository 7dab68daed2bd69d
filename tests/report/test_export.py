"""What other programs read: each format holds the numbers of the table, and a cell keeps its name."""

import csv
import io
import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pandas
import pytest

from kvbench.cli.main import main
from kvbench.records import COLUMNS, Row, read_rows
from kvbench.report.row_formats import print_rows
from kvbench.report.rows import load_table
from kvbench.report.selection import NothingSelected
from kvbench.report.tables.summary import summaries


def exported(capsys, *arguments):
    assert main(["export", *map(str, arguments)]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("what", ["accuracy", "bytes", "seconds"])
def test_github_benchmark_lists_every_cell_that_has_the_number(small, capsys, what):
    """A name does not hold the hash of the code."""
    points = json.loads(exported(capsys, "--format", "github-benchmark", "--results", small, f"what={what}"))
    cells = {cell.cell: cell for cell in summaries(load_table(small))}
    assert len({point["name"] for point in points}) == len(points) == len(cells)
    for point in points:
        assert set(point) == {"name", "unit", "value", "range", "extra"}
        cell = cells[point["extra"].rpartition("cell=")[2]]
        expected = {
            "accuracy": cell.mean and 100 * cell.mean,
            "bytes": cell.cache_bytes,
            "seconds": cell.evict_seconds,  # decoding steps are shared by all cells
        }[what]
        assert point["value"] == pytest.approx(expected)
    unit = {"accuracy": "string_match_all %", "bytes": "bytes", "seconds": "seconds per eviction"}[what]
    assert {point["unit"] for point in points} == {unit}
    (full,) = (point for point in points if "full" in point["name"])
    assert full["name"] == "reference ruler/niah_single_1 512 full 1.0"
    assert what != "accuracy" or (full["value"], full["range"]) == (90.0, "59.58..98.21")


def test_junit_counts_failed_samples_as_errors(small, tmp_path, capsys):
    out = tmp_path / "cells.xml"
    assert exported(capsys, "--format", "junit", "--results", small, "--out", out) == ""
    root = ET.fromstring(out.read_text())
    (suite,) = root
    assert (suite.get("name"), suite.get("tests"), suite.get("errors")) == ("ruler/niah_single_1", "6", "1")
    (error,) = root.iter("error")
    assert error.get("message") == "2 of 10 samples failed"
    assert not [case for case in root.iter("testcase") if case.get("time")]  # decoding steps are shared by all cells
    assert "the | prompt\nis too long: [8, 9]" in error.text


def test_parquet_and_markdown_are_those_of_the_reports(small, tmp_path, capsys):
    out = tmp_path / "rows.parquet"
    exported(capsys, "--format", "parquet", "--results", small, "--out", out)
    assert rows(out, "jsonl") == rows(small, "jsonl")
    assert exported(capsys, "--format", "markdown", "--results", out).count("| snapkv") == 2
    for words, code, message in (
        (["--format", "html"], 2, "eee|github-benchmark|junit|markdown|parquet"),
        (["--format", "junit", "what=speed"], 2, "allowed: accuracy, bytes, seconds"),
        (["--format", "junit", "policy=lava"], 4, "nothing to report"),
    ):
        assert main(["export", "--results", str(small), *words]) == code
        assert message in capsys.readouterr().err


def rows(folder: Path, format: str) -> str:
    out = io.StringIO()
    print_rows(folder, format, out)
    return out.getvalue()


def test_jsonl_is_every_row_as_recorded(small: Path) -> None:
    lines = rows(small, "jsonl").splitlines()
    assert [Row.from_json(line) for line in lines] == read_rows(small)
    assert len(lines) == 60 and all(tuple(json.loads(line)) == ("schema", *COLUMNS, "checksum") for line in lines)


NASTY = 'a "quoted", answer\nof two lines\r\nand, \u2028 more \U0001f511'


def test_csv_is_every_row_and_missing_is_blank(cell, results) -> None:
    folder = results(cell([1.0, 0.1, "too long"], prediction=NASTY))
    text = rows(folder, "csv")
    read = list(csv.DictReader(io.StringIO(text, newline="")))
    assert tuple(read[0]) == COLUMNS and len(read) == 3
    for row, strings in zip(read_rows(folder), read, strict=True):
        for name in COLUMNS:
            value = getattr(row, name)
            assert strings[name] == ("" if value is None else str(value)), name
    frame = pandas.read_csv(io.StringIO(text))
    assert frame["value"].isna().tolist() == [False, False, True] and frame["cache_bytes"].isna().all()


def test_half_a_surrogate_pair_can_be_printed(cell, results) -> None:
    folder = results(cell([1.0], prediction="\ud83d"))
    assert "\\ud83d" in rows(folder, "csv")
    rows(folder, "csv").encode("utf-8")
    assert Row.from_json(rows(folder, "jsonl")).prediction == "\ud83d"


def test_no_rows_is_missing_data(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    (tmp_path / "new" / "rows").mkdir(parents=True)
    faults = {"none": "does not exist", "file": "is not a folder", "empty": "is not a results folder"}
    before = sorted(tmp_path.rglob("*"))
    for name, fault in (faults | {"new": "has no rows yet"}).items():
        with pytest.raises(FileNotFoundError) as error:
            rows(tmp_path / name, "jsonl")
        fix = "run `kvbench run`, or name the folder of a run with --results"
        assert str(error.value) == f"results folder {str(tmp_path / name)!r} {fault}; {fix}"
    assert sorted(tmp_path.rglob("*")) == before


def test_a_file_is_there_whole_or_not_at_all(small: Path, tmp_path: Path) -> None:
    print_rows(small, "jsonl", tmp_path / "rows.jsonl")
    assert (tmp_path / "rows.jsonl").read_text() == rows(small, "jsonl")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(NothingSelected):
        print_rows(small, "csv", tmp_path / "rows.csv", where={"policy": ["tova"]})
    with pytest.raises(ValueError, match=r"cannot write .*nowhere/rows.csv'"):
        print_rows(small, "csv", tmp_path / "nowhere" / "rows.csv")
    with pytest.raises(ValueError, match=r"name it with --out FILE.parquet"):
        rows(small, "parquet")
    with pytest.raises(ValueError, match=r"unknown format 'xml'; allowed: jsonl\|csv\|parquet"):
        rows(small, "xml")
    assert sorted(tmp_path.iterdir()) == before
