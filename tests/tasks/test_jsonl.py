"""Rows of a file of JSON lines: read where they are asked for, and named where they are broken."""

import json
from pathlib import Path

import pytest

from kvbench.tasks.jsonl import at_most, rows

LINES = b'{"n": 0}\n\n{"n": 1}\n  \n{"n": 2}'


@pytest.fixture
def root(tmp_path: Path) -> str:
    (tmp_path / "a.jsonl").write_bytes(LINES)
    return str(tmp_path)


def test_rows_are_numbered_without_blank_lines(root: str):
    assert list(rows(root, "a.jsonl", [2, 1])) == [(1, {"n": 1}), (2, {"n": 2})]
    assert list(rows(root, "a.jsonl", [])) == []


@pytest.mark.parametrize("index", [3, -1])
def test_a_row_that_is_not_there_is_named(root: str, index: int):
    with pytest.raises(ValueError, match=rf"has no row {index}"):
        list(rows(root, "a.jsonl", [0, index]))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"n": 1', "row 1 is no JSON: "),
        (b'{"n": "a\xff"}', "row 1 is no UTF-8: invalid start byte at byte 8"),
        (b'{"n": "a\x00"}', "row 1 is no JSON: Invalid control character"),
        (b"[1]", "row 1 is no JSON object but list"),
        (b"[" * 100_000, "row 1 is nested too deeply"),
    ],
    ids=["cut", "bytes", "nul", "list", "deep"],
)
def test_a_broken_row_is_named_where_it_is_asked_for(tmp_path: Path, line: bytes, message: str):
    (tmp_path / "a.jsonl").write_bytes(b'{"n": 0}\n' + line)
    assert list(rows(str(tmp_path), "a.jsonl", [0])) == [(0, {"n": 0})]
    with pytest.raises(ValueError, match=message):
        list(rows(str(tmp_path), "a.jsonl", [1]))


def test_a_row_may_be_ten_megabytes_long(tmp_path: Path):
    (tmp_path / "a.jsonl").write_text(json.dumps({"n": "x" * 10**7}))
    ((_, row),) = rows(str(tmp_path), "a.jsonl", [0])
    assert len(row["n"]) == 10**7


def test_more_samples_than_rows_are_all_rows(root: str):
    assert [at_most(root, "a.jsonl", samples) for samples in (2, 3, 50)] == [2, 3, 3]
    assert at_most(root, "absent.jsonl", 50) == 50


def test_an_absent_file_is_an_error(root: str):
    with pytest.raises(FileNotFoundError, match=r"b\.jsonl"):
        list(rows(root, "b.jsonl", [0]))
