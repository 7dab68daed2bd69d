"""Copies of rows files as columns: the same rows as their lines, and never those of other bytes."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from kvbench.records import COLUMNS, Recorder, Row, columns, read_rows
from kvbench.records.parquet import to_parquet
from kvbench.records.rows import fetched, recorded
from kvbench.report.rows import load_table

KEPT = ("value", "prediction", "environment")


@pytest.fixture
def folder(
    cell: Callable[..., list[Row]], results: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A rows file that is worth a copy, and has one."""
    monkeypatch.setattr(columns, "LEAST_BYTES", 1)
    monkeypatch.setenv("KVBENCH_HOME", str(tmp_path / "home"))
    folder = results(cell([1.0, 0.0, None, 0.5]))
    read(folder, keep=True)
    return folder


def read(folder: Path, keep: bool = False, names: tuple[str, ...] = KEPT) -> pa.Table:
    return recorded(folder, names, pytest.fail, keep=keep)


def copy_of(folder: Path) -> Path:
    (path,) = (folder / "columns").iterdir()
    return path


@pytest.fixture
def unparsed(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What is parsed from now on."""
    texts: list[bytes] = []
    parse = columns._parse_at_once

    def noted(lines: bytes, count: int, names: tuple[str, ...]) -> pa.Table | None:
        texts.append(lines)
        return parse(lines, count, names)

    monkeypatch.setattr(columns, "_parse_at_once", noted)
    return texts


def test_a_copy_has_the_rows_of_its_file_and_spares_the_parsing(folder: Path, unparsed: list[bytes]) -> None:
    table = read(folder, names=COLUMNS)
    assert unparsed == [] and fetched(table) == read_rows(folder)
    assert load_table(folder, COLUMNS, pytest.fail)["value"].to_pylist() == table["value"].to_pylist()
    copy_of(folder).unlink()
    assert table.equals(read(folder, names=COLUMNS)) and len(unparsed) == 1
    assert not list((folder / "columns").iterdir())  # only who may write leaves one


def test_only_new_files_are_parsed(folder: Path, unparsed: list[bytes], cell: Callable[..., list[Row]]) -> None:
    with Recorder(folder) as recorder:
        recorder.append(cell([1.0, 1.0], policy="h2o"))
    assert read(folder, keep=True).num_rows == 6 and len(unparsed) == 1 and b'"h2o"' in unparsed[0]
    assert read(folder).num_rows == 6 and len(unparsed) == 1


@pytest.mark.parametrize("change", ["rows", "copy", "cut", "text", "another"])
def test_a_copy_of_other_bytes_or_a_damaged_one_is_not_read(folder: Path, unparsed: list[bytes], change: str) -> None:
    (rows,) = (folder / "rows").iterdir()
    copy, whole = copy_of(folder), read(folder)
    if change == "rows":
        rows.write_bytes(rows.read_bytes().replace(b'"value": 0.5', b'"value": 1.5'))
    elif change == "copy":
        data = bytearray(copy.read_bytes())
        data[len(data) // 2] ^= 1
        copy.write_bytes(data)
    elif change == "another":  # of a file whose rows have another size
        (folder / "finished" / f"{rows.stem}.json").unlink()
    else:
        copy.write_bytes(copy.read_bytes()[:40] if change == "cut" else b"rubbish")
    messages: list[str] = []
    table = recorded(folder, KEPT, messages.append)
    assert unparsed and (change == "rows") == bool(messages)
    assert table.equals(whole) if change != "rows" else table.num_rows == 3


def test_no_copy_is_left_of_what_is_not_whole(folder: Path, cell: Callable[..., list[Row]]) -> None:
    with Recorder(folder) as recorder:
        recorder.append(cell([1.0] * 2, policy="h2o"))
        recorded(folder, KEPT, pytest.fail, keep=True)  # its writer has not ended
        assert len(list((folder / "columns").iterdir())) == 1
    assert recorder.path is not None
    recorder.path.write_bytes(recorder.path.read_bytes()[:-20])
    recorded(folder, KEPT, lambda text: None, keep=True)
    assert len(list((folder / "columns").iterdir())) == 1


@pytest.mark.parametrize("forged", ["values", "samples", "fewer", "home"])
def test_a_copy_of_others_is_not_read(folder: Path, monkeypatch: pytest.MonkeyPatch, forged: str) -> None:
    """One that says that it is of these bytes, and has its own checksum; or a true one, made by another user."""
    copy, whole = copy_of(folder), read(folder, names=COLUMNS)
    table = pyarrow.parquet.read_table(copy)
    if forged == "values":
        column = pa.array([1.0, 1.0, None, 1.0])
        changed = table.set_column(table.column_names.index("value"), "value", column)
    elif forged == "samples":
        changed = table.set_column(table.column_names.index("sample"), "sample", pa.array([0, 1, 2, 9]))
    else:
        changed = pa.concat_tables([table[:3], table[:1]]) if forged == "fewer" else table
        if forged == "home":
            monkeypatch.setenv("KVBENCH_HOME", str(folder / "elsewhere"))
    copy.write_bytes(to_parquet(changed, table.schema.metadata))
    assert read(folder, names=COLUMNS).equals(whole)
