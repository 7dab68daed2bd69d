"""What is fetched becomes what tasks read, and nothing else becomes anything."""

import io
import json
import tarfile
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from kvbench.tasks.data.convert import check_installed, convert, tables
from kvbench.tasks.data.download import Unobtained
from kvbench.tasks.data.lock import Download, Output


def archive(members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """A zip with these members."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return buffer.getvalue()


def tarred(members: dict[str, bytes]) -> bytes:
    """A tar archive, compressed by gzip, with these members."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as file:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def converted_files(kind: str, content: bytes, work: Path, *outputs: Output) -> dict[str, bytes]:
    """What a download of this content becomes, by path."""
    work.mkdir(exist_ok=True)
    fetched = work / "f.part"
    fetched.write_bytes(content)
    made = convert(Download("mine", kind, "f", outputs or (Output("mine/f.jsonl"),)), fetched, work)
    return {output.path: file.read_bytes() for output, file in made}


def rows(kind: str, content: bytes, work: Path) -> list[object]:
    """The lines of JSON that a download of this content becomes."""
    return [json.loads(line) for line in converted_files(kind, content, work)["mine/f.jsonl"].split(b"\n")[:-1]]


A, B = (Output(f"mine/{name}", member=f"data/{name}") for name in ("a.jsonl", "b.jsonl"))
ARCHIVES = {"zip": archive, "tar": tarred}


@pytest.mark.parametrize("kind", ARCHIVES)
def test_members_are_taken_by_name_and_others_left_wherever_they_point(tmp_path: Path, kind: str) -> None:
    evil = {name: b"x" for name in ("../evil", "/evil", "data/../../evil", "data\\..\\..\\evil")}
    content = ARCHIVES[kind]({"data/a.jsonl": b"a\n", **evil, "data/b.jsonl": b"b\n", "data/c.jsonl": b"c\n"})
    files = converted_files(kind, content, tmp_path / "w", B, A)
    assert files == {"mine/b.jsonl": b"b\n", "mine/a.jsonl": b"a\n"}
    assert not [path for path in tmp_path.rglob("*") if "evil" in path.name]


@pytest.mark.parametrize("kind", ARCHIVES)
def test_an_archive_that_is_none_is_named(tmp_path: Path, kind: str) -> None:
    whole = ARCHIVES[kind]({"data/a.jsonl": bytes(range(256)) * 99})
    wrong = {
        r"no member data/b\.jsonl": ARCHIVES[kind]({"data/a.jsonl": b"a"}),
        "grow to more than 100 times": ARCHIVES[kind]({"data/a.jsonl": b"0" * 3_000_000, "data/b.jsonl": b""}),
    }
    for words, content in wrong.items():
        with pytest.raises(Unobtained, match=words):
            converted_files(kind, content, tmp_path / "w", A, B)
    for cut in (20, 300):
        with pytest.raises(Unobtained, match=f"not a valid {kind} file"):
            converted_files(kind, whole[:cut], tmp_path / "w", A)


def test_a_member_that_lies_about_its_size_is_caught(tmp_path: Path) -> None:
    content = bytearray(archive({"data/a.jsonl": b"0" * 40_000}, zipfile.ZIP_STORED))
    where = content.rindex(b"PK\x01\x02")
    content[where + 24 : where + 28] = (400).to_bytes(4, "little")
    with pytest.raises(Unobtained, match="not a valid zip file"):
        converted_files("zip", bytes(content), tmp_path / "w", A)


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
    files = converted_files("prompts", PROGRAM.encode(), tmp_path / "w")
    assert json.loads(files["mine/f.jsonl"]) == tables(PROGRAM)


@pytest.mark.parametrize("program", ["x = (", "x = 3", "", "x = {}", "a" * 10 + "(" * 5000])
def test_a_program_without_tables_is_refused(program: str) -> None:
    with pytest.raises(ValueError, match=r"not Python|no table"):
        tables(program)


def test_parquet_becomes_lines(tmp_path: Path) -> None:
    table = [{"prompts": [f"c{n}", "q\u2028é"], "ground_truth": [n, n + 1], "lang": None} for n in range(37)]
    buffer = io.BytesIO()
    parquet.write_table(pa.Table.from_pylist(table), buffer)
    assert rows("parquet", buffer.getvalue(), tmp_path) == table
    with pytest.raises(Unobtained, match="not a valid parquet file"):
        rows("parquet", buffer.getvalue()[:-9], tmp_path)


CHAPTER = 'He said "no",\n' * 20_000
QUESTIONS = [{"id": f"i{n}", "question": f"q{n}", "answers": [{"text": "a", "answer_start": n}]} for n in range(2)]
SQUAD = {"data": [{"title": "T", "paragraphs": [{"context": " c ", "qas": QUESTIONS}]}]}
TEXTS: dict[str, tuple[str, list[dict[str, object]], tuple[str, ...]]] = {
    "csv": (
        'bid,chapter\n1,"' + CHAPTER.replace('"', '""') + '"\n2,short\n',
        [{"bid": "1", "chapter": CHAPTER}, {"bid": "2", "chapter": "short"}],
        ("bid,chapter\n1\n", "bid,chapter\n1,2,3\n", 'bid,chapter\n1,"no end', "bid\n\xff"),
    ),
    "squad": (
        json.dumps(SQUAD),
        [
            {"id": f"i{n}", "title": "T", "context": " c ", "question": f"q{n}"}
            | {"answers": {"text": ["a"], "answer_start": [n]}}
            for n in range(2)
        ],
        ('{"data": 3}', "[", '{"data": [{"paragraphs": [{}]}]}'),
    ),
    "list": ('[{"a": "\u00e9"}, {"a": 1}]', [{"a": "é"}, {"a": 1}], ('{"a": 3}', "[", "\xff")),
}
"""By kind: a file, its rows, and files that are none."""


@pytest.mark.parametrize("kind", TEXTS)
def test_texts_become_a_line_a_row(tmp_path: Path, kind: str) -> None:
    text, expected, broken = TEXTS[kind]
    assert rows(kind, text.encode(), tmp_path) == expected
    for other in broken:
        with pytest.raises(Unobtained, match=f"not a valid {kind} file"):
            rows(kind, other.encode("latin-1"), tmp_path)


def test_a_kind_that_no_extra_brings_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unobtained, match="no extra unpacks files of the kind odd"):
        check_installed(Download("mine", "odd", "f", ()))
