"""Rows of a file of JSON lines: read where they are asked for, and named where they are broken."""

import json
from pathlib import Path

import pytest

from kvbench.tasks.jsonl import rows

LINES = b'{"n": 0}\n\n{"n": 1}\n  \n{"n": 2}'


@pytest.fixture
def root(tmp_path: Path) -> str:
    (tmp_path / "a.jsonl").write_bytes(LINES)
    return str(tmp_path)


def test_rows_are_numbered_without_blank_lines(root: str):
    lines = [(line.number, line.place, line.read()) for line in rows(root, "a.jsonl", [2, 1])]
    assert lines == [(1, "a.jsonl:3", {"n": 1}), (2, "a.jsonl:5", {"n": 2})]
    assert list(rows(root, "a.jsonl", [])) == []


@pytest.mark.parametrize("index", [3, -1])
def test_a_row_that_is_not_there_is_named(root: str, index: int):
    with pytest.raises(ValueError, match=rf"has no row {index}"):
        list(rows(root, "a.jsonl", [0, index]))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"n": 1', "not JSON: "),
        (b'{"n": "a\xff"}', "not UTF-8: invalid start byte at byte 8"),
        (b'{"n": "a\x00"}', "not JSON: Invalid control character"),
        (b"[1]", "not a JSON object but a list"),
        (b"[" * 100_000, "nested too deeply"),
    ],
    ids=["cut", "bytes", "nul", "list", "deep"],
)
def test_a_broken_row_says_so_when_it_is_read_and_others_do_not(tmp_path: Path, line: bytes, message: str):
    (tmp_path / "a.jsonl").write_bytes(b'{"n": 0}\n' + line + b'\n{"n": 2}')
    first, broken, last = rows(str(tmp_path), "a.jsonl", [0, 1, 2])
    assert (first.read(), last.read()) == ({"n": 0}, {"n": 2})
    with pytest.raises(ValueError, match=message):
        broken.read()


def test_a_file_as_windows_writes_it_is_read(tmp_path: Path):
    """A byte order mark before the first row, carriage returns behind all of them."""
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"n": 0}\r\n{"n": 1}\r\n\r\n')
    assert [line.read() for line in rows(str(tmp_path), "a.jsonl")] == [{"n": 0}, {"n": 1}]


def test_a_row_may_be_ten_megabytes_long(tmp_path: Path):
    (tmp_path / "a.jsonl").write_text(json.dumps({"n": "x" * 10**7}))
    (line,) = rows(str(tmp_path), "a.jsonl", [0])
    assert len(line.read()["n"]) == 10**7
