"""What other programs read: each format holds the numbers of the table, and a cell keeps its name."""

import json
import xml.etree.ElementTree as ET

import pyarrow.parquet
import pytest

from kvbench.cli.main import main
from kvbench.report.rows import load_table
from kvbench.report.tables.summary import summaries


def exported(capsys, *arguments):
    assert main(["export", *map(str, arguments)]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("what", ["accuracy", "bytes", "seconds"])
def test_github_benchmark_lists_every_cell_that_has_the_number(small, capsys, what):
    points = json.loads(exported(capsys, "--format", "github-benchmark", "--results", small, f"what={what}"))
    cells = {cell.cell: cell for cell in summaries(load_table(small))}
    assert len({point["name"] for point in points}) == len(points) == len(cells)
    for point in points:
        assert set(point) == {"name", "unit", "value", "range", "extra"}
        cell = cells[point["extra"].rpartition("cell=")[2]]
        expected = {
            "accuracy": cell.mean and 100 * cell.mean,
            "bytes": cell.cache_bytes,
            "seconds": cell.evict_seconds + cell.decode_seconds,
        }[what]
        assert point["value"] == pytest.approx(expected)
    assert {point["unit"] for point in points} == {
        {"accuracy": "string_match_all %", "bytes": "bytes", "seconds": "seconds"}[what]
    }


def test_names_do_not_hold_the_hash_of_the_code(small, capsys):
    (point,) = json.loads(exported(capsys, "--format", "github-benchmark", "--results", small, "policy=full"))
    assert point["name"] == "reference ruler/niah_single_1 512 full 1.0"
    assert (point["value"], point["range"]) == (90.0, "59.58..98.21")


def test_junit_counts_failed_samples_as_errors(small, tmp_path, capsys):
    out = tmp_path / "cells.xml"
    assert exported(capsys, "--format", "junit", "--results", small, "--out", out) == ""
    root = ET.fromstring(out.read_text())
    (suite,) = root
    assert (suite.get("name"), suite.get("tests"), suite.get("errors")) == ("ruler/niah_single_1", "6", "1")
    (error,) = root.iter("error")
    assert error.get("message") == "2 of 10 samples failed"
    assert "the | prompt\nis too long: [8, 9]" in error.text


def test_parquet_and_markdown_are_those_of_the_reports(small, tmp_path, capsys):
    out = tmp_path / "rows.parquet"
    exported(capsys, "--format", "parquet", "--results", small, "--out", out)
    assert pyarrow.parquet.read_table(out).num_rows == 60
    assert exported(capsys, "--format", "markdown", "--results", out).count("| snapkv") == 2


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--format", "html"], 2, "github-benchmark|junit|markdown|parquet"),
        (["--format", "junit", "what=speed"], 2, "choose accuracy, bytes, seconds"),
        (["--format", "junit", "policy=lava"], 4, "nothing to report"),
    ],
    ids=["format", "what", "selection"],
)
def test_what_cannot_be_exported_is_said(small, capsys, arguments, code, message):
    assert main(["export", "--results", str(small), *arguments]) == code
    assert message in capsys.readouterr().err
