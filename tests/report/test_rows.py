import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kvbench.extras.hub.table_rows import table_rows
from kvbench.records import SCHEMA, Recorder, ResultsFolder, Row, read_rows
from kvbench.records import lines as lines_of_files
from kvbench.records.columns import table_of
from kvbench.records.environment import content_hash
from kvbench.records.parquet import to_parquet
from kvbench.records.parquet_rows import metadata_of, write_parquet
from kvbench.records.row import with_checksum
from kvbench.report.rows import describer, load, load_table
from kvbench.report.selection import NothingSelected
from kvbench.report.tables.summary import NEEDED, summaries
from kvbench.support.errors import UserError

Lines = Callable[..., Path]


@pytest.fixture
def lines(tmp_path: Path) -> Lines:
    """A results folder whose files have these lines, as they are."""

    def folder(*files: str) -> Path:
        (tmp_path / "runs" / "rows").mkdir(parents=True, exist_ok=True)
        for number, content in enumerate(files):
            (tmp_path / "runs" / "rows" / f"{number}.jsonl").write_text(content)
        return tmp_path / "runs"

    return folder


def changed(row: Row, **columns: object) -> str:
    """The line of a row with other columns, and their checksum; ``...`` takes a column away."""
    data = json.loads(row.to_json()) | columns | {"checksum": ...}
    return with_checksum(json.dumps({name: value for name, value in data.items() if value is not ...})) + "\n"


def quiet(text: str) -> None:
    raise AssertionError(f"nothing to warn about: {text}")


@pytest.mark.parametrize("block", [700, 5_000, 2**25])
def test_blocks_change_nothing(small: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    expected = summaries(read_rows(small))
    monkeypatch.setattr(lines_of_files, "BLOCK", block)
    assert load(small, quiet) == read_rows(small)
    assert summaries(load_table(small, NEEDED, quiet)) == expected


def test_a_line_that_needs_a_closer_look_changes_nothing_else(cell, results, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = results(cell([1.0, 0.25, "too long", None], prediction="fine"), cell([0.5], "h2o", prediction="\ud83d"))
    taken = load_table(folder, warn=quiet)
    assert taken["prediction"].to_pylist() == ["fine"] * 4 + ["\\ud83d"]
    assert taken["value"].to_pylist() == [1.0, 0.25, None, None, 0.5]
    assert load(folder, quiet)[-1].prediction == "\ud83d"


@pytest.mark.parametrize("tail", ['{"cell": "ab", "sam', '{"cell": "ab", "sam\n', "\x00\x00"])
def test_a_torn_last_line_is_dropped_and_told(small: Path, tail: str) -> None:
    (path,) = (small / "rows").iterdir()
    (small / "finished" / f"{path.stem}.json").unlink()  # the writer was killed
    with path.open("a") as file:
        file.write(tail)
    with pytest.warns(UserWarning) as warnings:
        assert len(load(small)) == 60
    (warning,) = warnings
    assert str(warning.message).startswith(f"{path}:61: torn last line dropped")


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("sample", "3", "row column 'sample' is '3'"),
        ("sample", 1.5, "row column 'sample' is 1.5"),
        ("cell", None, "row column 'cell' is None"),
        ("policy", ..., "row column 'policy' is None"),
        ("sample", ..., "row column 'sample' is None"),
        ("value", [1], "row column 'value' is [1]"),
        ("value", "0.5", "row column 'value' is '0.5'"),
        ("cache_bytes", True, "row column 'cache_bytes' is True"),
        ("evict_seconds", math.nan, "NaN is not JSON"),
        ("value", math.nan, "NaN is not JSON"),
        ("value", math.inf, "Infinity is not JSON"),
        ("schema", "two", "schema 'two'"),
        ("schema", ..., "schema None"),
        ("schema", 0, "schema 0"),
        ("error", "and a value", "row has both an error ('and a value') and a value (1.0)"),
    ],
)
def test_what_is_no_row_is_left_out_by_file_and_line(cell, lines, column: str, value: object, message: str) -> None:
    good, bad, last = cell([1.0, 1.0, 1.0])
    text = good.to_json() + "\n" + changed(bad, **{column: value})
    for after in ([last], []):
        folder, warnings = lines(text + "".join(row.to_json() + "\n" for row in after)), []
        assert load(folder, warn=warnings.append) == [good, *after]
        (warning,) = warnings
        assert warning.startswith(f"{folder / 'rows' / '0.jsonl'}:2: damaged row, not counted: ") and message in warning


def test_a_row_of_a_later_kvbench_is_refused(cell, lines: Lines) -> None:
    good, newer = cell([1.0, 1.0])
    for schema in (SCHEMA + 1, 9):
        folder = lines(good.to_json() + "\n" + changed(newer, schema=schema))
        for read in (load_table, read_rows):
            with pytest.raises(UserError, match=rf"0\.jsonl:2: not a row: schema {schema}; this kvbench reads"):
                read(folder, warn=quiet)


def test_columns_that_a_line_lacks_are_blank_and_unknown_ones_named_and_left_out(cell, lines: Lines) -> None:
    first, new = cell([1.0, 0.5], top2_margin=0.25, store="int8")
    known, more = {"top2_margin": ..., "store": ...}, {"colour": "red", "shade": {"deep": 1}}
    folder = lines(changed(first, **known, **more) + new.to_json() + "\n")
    for read in (load, read_rows):
        warnings: list[str] = []
        assert read(folder, warnings.append) == [replace(first, top2_margin=None, store=None), new]
        named = "columns that this kvbench does not know are left out: colour, shade"
        assert warnings == [f"{folder}/rows/0.jsonl: {named}"]


def test_a_row_without_a_value_is_blank(cell, lines: Lines) -> None:
    folder = lines("".join(row.to_json() + "\n" for row in cell([1.0, None, None, 0.0])))
    (line,) = summaries(load_table(folder, NEEDED, quiet))
    assert (line.n, line.mean, line.errors, line.blanks, line.blank_samples) == (2, 0.5, 0, 2, (1, 2))
    assert [row.value for row in load(folder, quiet)] == [1.0, None, None, 0.0]


def test_identical_rows_count_once(cell, lines: Lines) -> None:
    rows = cell([1.0, 0.0, 1.0], evict_seconds=0.1)
    again = changed(rows[1], evict_seconds=0.2, environment="elsewhere")
    warnings: list[str] = []
    folder = lines("".join(row.to_json() + "\n" for row in rows), again + again)
    assert load(folder, warnings.append) == rows
    assert warnings == ["2 rows recorded twice with the same outcome; each sample counts once"]


def test_a_failed_sample_that_was_run_again_counts_as_run_again(cell, lines: Lines) -> None:
    first, second = cell(["too long", "too long"])
    warnings: list[str] = []
    later = changed(first, error=None, value=1.0) + changed(second, error="no memory")
    folder = lines(first.to_json() + "\n" + second.to_json() + "\n", later)
    assert [(row.sample, row.value, row.error) for row in load(folder, warnings.append)] == [
        (0, 1.0, None),
        (1, None, "no memory"),
    ]
    assert warnings == ["2 rows with an error were replaced by a later run; each sample counts once"]


def test_two_outcomes_of_one_sample_are_refused(cell, lines: Lines, tmp_path: Path) -> None:
    row, other = cell([1.0, 0.0])
    again = replace(row, value=0.0, prediction="x")
    folder = lines(row.to_json() + "\n", f"{other.to_json()}\n{again.to_json()}\n")
    packed = tmp_path / "rows.parquet"
    write_parquet(table_of([row, other, again]), packed, lambda cell: None)
    for source, first, second in ((folder, "/rows/0.jsonl:1", "/rows/1.jsonl:2"), (packed, ":1", ":3")):
        with pytest.raises(ValueError) as error:
            load(source, quiet)
        assert str(error.value) == (
            f"cell {row.cell}, sample 0 has two outcomes: {source}{first} and {source}{second} differ in "
            "prediction, value; remove the wrong one, or move its file away"
        )


def test_parquet_stands_in_for_a_folder(small: Path, tmp_path: Path) -> None:
    description = {"task": {"depth": 50}}
    cell = content_hash(description)[:16]
    with Recorder(small) as recorder:
        recorder.append([replace(row, cell=cell) for row in read_rows(small)[:1]])
    ResultsFolder(small).write_cell(cell, description)
    path = tmp_path / "rows.parquet"
    write_parquet(load_table(small, warn=quiet), path, describer(small))
    assert load(path, quiet) == read_rows(small)
    assert summaries(load_table(path, NEEDED, quiet)) == summaries(read_rows(small))
    assert describer(path)(cell) == {"task": {"depth": 50}} and describer(path)("other") is None
    written = path.read_bytes()
    write_parquet(load_table(path, warn=quiet), path, describer(small))
    assert path.read_bytes() == written


def test_what_is_no_parquet_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    path.write_text("hello")
    with pytest.raises(ValueError, match=f"^{path}: not a Parquet file of rows: "):
        load(path, quiet)


def test_a_parquet_file_of_another_schema_or_without_a_checksum_is_refused(small: Path, tmp_path: Path) -> None:
    path, rows = tmp_path / "rows.parquet", load_table(small, warn=quiet).drop_columns(["file", "line"])
    for schema in (None, SCHEMA + 1, 9, 0):
        path.write_bytes(to_parquet(rows, {} if schema is None else {b"kvbench.schema": str(schema).encode()}))
        message = f"^{path}: not a Parquet file of rows: schema {schema or 0}; this kvbench reads"
        with pytest.raises(UserError, match=message):
            load_table(path, warn=quiet)
    pq.write_table(rows.replace_schema_metadata(metadata_of({})), path)
    with pytest.raises(UserError, match=f"^{path}: damaged: its bytes do not match its checksum"):
        load_table(path, warn=quiet)


@pytest.mark.parametrize("count", [300, 10**6], ids=["texts", "rows"])
def test_a_parquet_file_does_not_grow_without_limit(small: Path, tmp_path: Path, count: int) -> None:
    """Three hundred predictions of a megabyte are ten kilobytes; a million empty rows are less."""
    path = tmp_path / "rows.parquet"
    write_parquet(load_table(small, warn=quiet), path, lambda cell: None)
    read = pq.read_table(path)
    texts = pa.DictionaryArray.from_arrays(pa.array(np.zeros(300, np.int32)), pa.array(["x" * 2**20]))
    many = read.take(pa.array(np.zeros(300, np.int64))).set_column(
        read.column_names.index("prediction"), "prediction", texts
    )
    if count > 300:
        many = pa.table({name: pa.nulls(count, pa.int64()) for name in read.column_names})
    path.write_bytes(to_parquet(many, metadata_of({})))
    assert path.stat().st_size < 2**20
    with pytest.raises(UserError, match="not a Parquet file of rows: it would grow to more than 256 MiB"):
        load_table(path, warn=quiet)
    with pytest.raises(UserError, match="not a table: it would grow to more than 256 MiB"):
        table_rows(str(path), None, None, "test", (("context", "prediction"), ("answers", "cell")))


@pytest.mark.parametrize(
    ("where", "cells"),
    [
        ({"policy": ["snapkv"]}, 3),
        ({"policy": ["snapkv", "full"]}, 4),
        ({"policy": ["s*"]}, 5),
        ({"policy": ["snapkv"], "budget": ["0.10"]}, 2),
        ({"score": ["null"], "task": ["ruler/*"]}, 3),
        ({"task": ["ruler/*"]}, 6),
        ({"context_length": ["512"], "task": ["ruler/*"]}, 6),
        ({"policy.window": ["32"], "task": ["other"]}, 1),
    ],
)
def test_a_selection_is_by_any_column_or_setting(small: Path, where: dict[str, list[str]], cells: int) -> None:
    description = {"policy": {"window": 32}}
    cell = content_hash(description)[:16]
    ResultsFolder(small).write_cell(cell, description)
    with Recorder(small) as recorder:
        recorder.append([replace(row, cell=cell, task="other", policy="tova") for row in read_rows(small)[:1]])
    assert len(summaries(load_table(small, NEEDED, quiet, where))) == cells
    assert len({row.cell for row in load(small, quiet, where)}) == cells


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ({"policy": ["snapkw"]}, "no row has policy=snapkw; the rows have full, snapkv, streaming_llm"),
        ({"policy": ["s"]}, "no row has policy=s; the rows have snapkv, streaming_llm, full"),
        ({"budget": ["1"]}, "no row has budget=1; the rows have 1.0, 0.1, 0.2"),
        ({"policy": ["full"], "budget": ["0.1"]}, "no row has budget=0.1; the rows have 1.0"),
        ({"task.depth": ["5"]}, "no row has task.depth=5; the rows have null"),
    ],
)
def test_an_empty_selection_says_what_there_is(small: Path, where: dict[str, list[str]], message: str) -> None:
    with pytest.raises(NothingSelected) as error:
        load_table(small, NEEDED, quiet, where)
    assert str(error.value) == message


def test_a_value_without_a_row_beside_others_is_told_and_an_unknown_column_refused(small: Path) -> None:
    warnings: list[str] = []
    assert {row.policy for row in load(small, warnings.append, {"policy": ["full", "tova"]})} == {"full"}
    assert warnings == ["no row has policy=tova; the rows have full, snapkv, streaming_llm"]
    with pytest.raises(ValueError, match=r"^polcy=h2o: rows have no column 'polcy': did you mean policy. allowed: "):
        load(small, quiet, {"polcy": ["h2o"]})


def test_a_share_above_one_is_no_value(cell, lines: Lines, tmp_path: Path) -> None:
    rows = cell([1.0, 0.0, 1.0], unit="share")
    folder = lines("".join(row.to_json() + "\n" for row in rows[:2]) + changed(rows[2], value=5.0))
    warnings: list[str] = []
    assert load_table(folder, NEEDED, warnings.append)["sample"].to_pylist() == [0, 1]
    assert "0.jsonl:3: damaged row, not counted: row column 'value' is 5.0; string_match_all is a share" in warnings[0]
    table = table_of(rows)
    path = tmp_path / "rows.parquet"
    values = pa.array([1.0, 5.0, 1.0])
    write_parquet(table.set_column(table.schema.get_field_index("value"), "value", values), path, lambda cell: None)
    with pytest.raises(ValueError, match=r"a value of string_match_all is not in 0\.\.1: the file is damaged"):
        load_table(path, NEEDED, quiet)


def test_every_changed_byte_of_a_parquet_file_is_found(small: Path, tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    write_parquet(load_table(small, warn=quiet), path, lambda cell: None)
    whole = path.read_bytes()
    for place in (whole.rfind(b"kvbench.crc32"), *range(0, len(whole), 97)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(ValueError, match=f"^{path}: damaged: its bytes do not match its checksum"):
            load_table(path, NEEDED, quiet)
