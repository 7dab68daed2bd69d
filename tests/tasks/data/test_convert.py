"""What is fetched becomes what tasks read, and nothing else becomes anything."""

import io
import json
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from kvbench.tasks.data.convert import convert, tables
from kvbench.tasks.data.download import Unobtained
from kvbench.tasks.data.lock import Download, Output


def archive(members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return buffer.getvalue()


def zipped(*names: str) -> Download:
    return Download("mine", "zip", "z.zip", tuple(Output(f"mine/{name}", member=f"data/{name}") for name in names))


def converted_files(download: Download, content: bytes, work: Path) -> dict[str, bytes]:
    work.mkdir(exist_ok=True)
    fetched = work / "f.part"
    fetched.write_bytes(content)
    return {output.path: file.read_bytes() for output, file in convert(download, fetched, work)}


def test_members_are_taken_by_name_and_others_left(tmp_path: Path) -> None:
    content = archive({"data/a.jsonl": b"a\n", "data/b.jsonl": b"b\n", "data/c.jsonl": b"c\n"})
    files = converted_files(zipped("b.jsonl", "a.jsonl"), content, tmp_path / "w")
    assert files == {"mine/b.jsonl": b"b\n", "mine/a.jsonl": b"a\n"}


@pytest.mark.parametrize("name", ["../evil", "/evil", "data/../../evil", "data\\..\\..\\evil"])
def test_an_archive_that_points_out_of_itself_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(Unobtained, match="has a path outside the archive"):
        converted_files(zipped("a.jsonl"), archive({"data/a.jsonl": b"a", name: b"x"}), tmp_path / "w")
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["f.part"]


def test_a_bomb_is_not_unpacked(tmp_path: Path) -> None:
    with pytest.raises(Unobtained, match=r"grow to \d+ bytes, more than 100 times"):
        converted_files(zipped("a.jsonl"), archive({"data/a.jsonl": b"0" * 3_000_000}), tmp_path / "w")


def test_a_member_that_lies_about_its_size_is_caught(tmp_path: Path) -> None:
    content = bytearray(archive({"data/a.jsonl": b"0" * 40_000}, zipfile.ZIP_STORED))
    where = content.rindex(b"PK\x01\x02")
    content[where + 24 : where + 28] = (400).to_bytes(4, "little")
    with pytest.raises(Unobtained, match="not a valid zip file"):
        converted_files(zipped("a.jsonl"), bytes(content), tmp_path / "w")


@pytest.mark.parametrize("cut", [3, 400, -1], ids=["head", "middle", "last byte"])
def test_a_truncated_archive_is_named(tmp_path: Path, cut: int) -> None:
    content = archive({"data/a.jsonl": bytes(range(256)) * 9})
    with pytest.raises(Unobtained, match="not a valid zip file"):
        converted_files(zipped("a.jsonl"), content[:cut], tmp_path / "w")


def test_a_member_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unobtained, match=r"no member data/b\.jsonl"):
        converted_files(zipped("a.jsonl", "b.jsonl"), archive({"data/a.jsonl": b"a"}), tmp_path / "w")


def tarred(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as file:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def test_members_of_a_tar_archive_are_taken_by_name_and_others_left(tmp_path: Path) -> None:
    download = replace(zipped("b.jsonl", "a.jsonl"), kind="tar", name="t.tar.gz")
    members = {"data/a.jsonl": b"a\n", "../evil": b"x", "data/b.jsonl": b"b\n"}
    assert converted_files(download, tarred(members), tmp_path / "w") == {
        "mine/b.jsonl": b"b\n",
        "mine/a.jsonl": b"a\n",
    }
    assert not (tmp_path / "evil").exists() and not (tmp_path.parent / "evil").exists()
    wrong = {
        "no member data/b.jsonl": tarred({"data/a.jsonl": b"a"}),
        "100 times as large": tarred({"data/a.jsonl": b"0" * 3_000_000, "data/b.jsonl": b""}),
        "not a valid tar file": tarred({"data/a.jsonl": bytes(range(256)) * 99})[:300],
    }
    for message, content in wrong.items():
        with pytest.raises(Unobtained, match=message):
            converted_files(download, content, tmp_path / "w")


PROGRAM = """
import os
os.mkdir("ran")
one_templates = {
    "a": "x\\n{context}",  # noqa
    # "b": "commented out",
    "c": "y" + " and " + "z",
    "d": f"{os}",
    "e": 7,
}
number = 3
two_templates = {"a": \'\'\'é\'\'\'}
calls = dict(a="no literal")
"""


def test_tables_are_read_and_nothing_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert tables(PROGRAM) == {"one_templates": {"a": "x\n{context}", "c": "y and z"}, "two_templates": {"a": "é"}}
    assert not (tmp_path / "ran").exists()
    download = Download("mine", "prompts", "prompt.py", (Output("mine/prompts.json"),))
    files = converted_files(download, PROGRAM.encode(), tmp_path / "w")
    assert json.loads(files["mine/prompts.json"]) == tables(PROGRAM)


@pytest.mark.parametrize("program", ["x = (", "x = 3", "", "x = {}", "a" * 10 + "(" * 5000])
def test_a_program_without_tables_is_refused(program: str) -> None:
    with pytest.raises(ValueError, match=r"not Python|no table"):
        tables(program)


def lines(content: bytes) -> list[object]:
    return [json.loads(line) for line in content.split(b"\n")[:-1]]


def test_parquet_becomes_lines(tmp_path: Path) -> None:
    rows = [{"prompts": [f"c{n}", "q\u2028é"], "ground_truth": [n, n + 1], "lang": None} for n in range(37)]
    buffer = io.BytesIO()
    parquet.write_table(pa.Table.from_pylist(rows), buffer)
    download = Download("mine", "parquet", "a.parquet", (Output("mine/a.jsonl"),))
    assert [
        json.loads(line)
        for line in converted_files(download, buffer.getvalue(), tmp_path)["mine/a.jsonl"].split(b"\n")[:-1]
    ] == rows
    with pytest.raises(Unobtained, match="not a valid parquet file"):
        converted_files(download, buffer.getvalue()[:-9], tmp_path)


def test_csv_becomes_lines(tmp_path: Path) -> None:
    chapter = 'He said "no",\n' * 20_000
    content = 'bid,chapter\n1,"' + chapter.replace('"', '""') + '"\n2,short\n'
    download = Download("mine", "csv", "a.csv", (Output("mine/a.jsonl"),))
    rows = lines(converted_files(download, content.encode(), tmp_path)["mine/a.jsonl"])
    assert rows == [{"bid": "1", "chapter": chapter}, {"bid": "2", "chapter": "short"}]
    for broken in ("bid,chapter\n1\n", "bid,chapter\n1,2,3\n", 'bid,chapter\n1,"no end', "bid\n\xff"):
        with pytest.raises(Unobtained, match="not a valid csv file"):
            converted_files(download, broken.encode("latin-1"), tmp_path)


def test_squad_becomes_a_line_a_question(tmp_path: Path) -> None:
    questions = [{"id": f"i{n}", "question": f"q{n}", "answers": [{"text": "a", "answer_start": n}]} for n in range(3)]
    content = {"data": [{"title": "T", "paragraphs": [{"context": " c ", "qas": questions}]}]}
    download = Download("mine", "squad", "a.json", (Output("mine/a.jsonl"),))
    rows = lines(converted_files(download, json.dumps(content).encode(), tmp_path)["mine/a.jsonl"])
    assert rows[1] == {
        "id": "i1",
        "title": "T",
        "context": " c ",
        "question": "q1",
        "answers": {"text": ["a"], "answer_start": [1]},
    }
    for broken in ('{"data": 3}', "[", '{"data": [{"paragraphs": [{}]}]}'):
        with pytest.raises(Unobtained, match="not a valid squad file"):
            converted_files(download, broken.encode(), tmp_path)


def test_a_list_becomes_a_line_a_row(tmp_path: Path) -> None:
    download = Download("mine", "list", "a.json", (Output("mine/a.jsonl"),))
    assert lines(converted_files(download, '[{"a": "é"}, {"a": 1}]'.encode(), tmp_path)["mine/a.jsonl"]) == [
        {"a": "é"},
        {"a": 1},
    ]
    for broken in ('{"a": 3}', "[", "\xff"):
        with pytest.raises(Unobtained, match="not a valid list file"):
            converted_files(download, broken.encode("latin-1"), tmp_path)
