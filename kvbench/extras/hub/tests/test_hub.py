"""Rows of tables and of data sets of the Hub as prompts: the same rows from every kind of file, and what is refused."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import csv, feather, parquet

from kvbench.extras.hub import table_rows
from kvbench.extras.hub.hub import HubRows
from kvbench.support.errors import MissingFile, UserError

COLUMNS = {"context": "article", "question": "q", "answers": "label"}
TABLE = pa.table(
    {"article": ["A long text.", "Another."], "q": ["Who?", None], "label": [4711, 12], "more": ["a", "b"]}
)


def stream(table: pa.Table, path: str) -> None:
    """As `datasets` writes its files."""
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table)


WRITERS: dict[str, Any] = {
    "parquet": parquet.write_table,
    "csv": csv.write_csv,
    "feather": feather.write_feather,
    "arrow": stream,
}


def written(folder: Path, kind: str, table: pa.Table = TABLE) -> str:
    WRITERS[kind](table, path := str(folder / f"mine.{kind}"))
    return path


def samples_of(task: HubRows) -> list[Any]:
    return list(task.generate(len, range(task.samples)))


def test_every_kind_of_file_gives_the_same_rows(tmp_path: Path) -> None:
    tasks = [HubRows(path=written(tmp_path, kind), columns=COLUMNS) for kind in WRITERS]
    for task in tasks:
        first, second = samples_of(task)
        assert (task.name, task.samples) == ("hub/mine", 2)
        assert (first.prompt, first.references) == ("A long text.\n\nWho?", ("4711",))
        assert (second.prompt, second.references) == ("Another.", ("12",))
    (sha256,) = {task.data_sha256 for task in tasks}
    assert tasks[0].described()["data_sha256"] == sha256
    other = TABLE.set_column(3, "more", [["c", "d"]])
    assert HubRows(path=written(tmp_path, "feather", other), columns=COLUMNS).data_sha256 == sha256
    other = TABLE.set_column(2, "label", [[4711, 13]])  # of columns that are read
    assert HubRows(path=written(tmp_path, "csv", other), columns=COLUMNS).data_sha256 != sha256


def test_a_dot_enters_a_structure_and_usual_names_need_no_columns(tmp_path: Path) -> None:
    table = pa.table({"context": ["Text."], "answers": [{"text": ["Anna", "Anna Berg"], "start": [1, 2]}]})
    columns = {"context": "context", "answers": "answers.text"}
    (sample,) = samples_of(HubRows(path=written(tmp_path, "parquet", table), columns=columns))
    assert sample.references == ("Anna", "Anna Berg")
    table = pa.table({"context": ["Text."], "answers": ["Anna"], "id": [3]})
    (sample,) = samples_of(HubRows(path=written(tmp_path, "csv", table)))
    assert (sample.prompt, sample.references) == ("Text.", ("Anna",))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"columns": COLUMNS | {"context": "text"}}, "has no column text for context, only article, q, label, more"),
        ({"columns": {"contxt": "article"}}, r"task\.columns has contxt: allowed: context, question, messages"),
        ({}, r"unknown key 'article': read are .*; or name what is read with task\.columns="),
        ({"columns": COLUMNS, "revision": "abc"}, r"task\.revision is of data sets .* is a file: leave it out"),
        ({"path": "org/name"}, r"needs task\.revision=COMMIT: what a branch holds changes"),
        ({"path": "org/name", "revision": "abc"}, r"is read by datasets: pip install 'kvbench\[hub\]'"),
    ],
    ids=["column", "role", "no columns", "revision of a file", "no revision", "no package"],
)
def test_what_is_refused(tmp_path: Path, fields: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match=message):
        HubRows(**{"path": written(tmp_path, "parquet")} | fields)


def test_a_row_without_text_and_a_file_that_is_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"line 1: its context is a number, not a text"):
        samples_of(HubRows(path=written(tmp_path, "parquet"), columns=COLUMNS | {"context": "label"}))
    for path in ("no.parquet", "/no/such/file"):
        with pytest.raises(MissingFile, match=rf"task\.path={path}: no such file"):
            HubRows(path=path)


def test_the_hub_is_asked_for_the_revision(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A stand-in with the functions of `datasets` that are used; what the Hub gives has the hash of a file of it."""
    asked: list[Any] = []

    def load_dataset(path: str, name: str | None, *, split: str, revision: str) -> Any:
        asked.append((path, name, split, revision))
        if path == "org/gone":
            raise ConnectionError("Couldn't reach\nthe Hub")
        select = lambda names: TABLE.select(names).to_pylist()  # noqa: E731
        return SimpleNamespace(column_names=TABLE.column_names, select_columns=select)

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    table_rows._of_hub.cache_clear()
    task = HubRows(path="org/name", revision="5e1f", subset="small", split="dev", columns=COLUMNS)
    assert (task.name, asked) == ("hub/org/name", [("org/name", "small", "dev", "5e1f")])
    assert task.data_sha256 == HubRows(path=written(tmp_path, "csv"), columns=COLUMNS).data_sha256
    assert task.described()["revision"] == "5e1f"
    with pytest.raises(MissingFile, match=r"org/gone revision 1: the Hub did not give it: Couldn't reach the Hub"):
        HubRows(path="org/gone", revision="1")


def test_the_package_itself_reads_a_data_set(tmp_path: Path) -> None:
    """`datasets` with a folder in place of a repository: the calls have its signatures."""
    datasets = pytest.importorskip("datasets", reason="the extra hub is not installed")
    parquet.write_table(TABLE, tmp_path / "test.parquet")
    data = datasets.load_dataset(str(tmp_path), None, split="test", revision=None)
    assert list(data.select_columns(["article", "label"]))[1] == {"article": "Another.", "label": 12}
