"""Results folders copied into one: every sample once with what belongs to it, or nothing at all."""

import json
import shutil
from pathlib import Path

import pytest

from kvbench.cli.main import main
from kvbench.records import Curve, Recorder, ResultsFolder, read_rows, read_sidecar
from kvbench.records.manifest import differing, read_manifest, true_manifest, write_manifest
from kvbench.records.merge import merge
from kvbench.report.rows import load_table
from tests.cells import name_of

SETTINGS = {"policy": {"name": "snapkv"}}
CELL = name_of(SETTINGS)


def curve(sample: int, **columns: object) -> str:
    parts = {"metric": "nll", "edges": (0, 1), "sums": (float(sample),), "counts": (1,)} | columns
    return Curve(cell=CELL, sample=sample, **parts).to_json()  # type: ignore[arg-type]


@pytest.fixture
def shard(tmp_path: Path, make):
    """Writes the folder of a shard with these samples."""

    def write(name: str, *samples: int, **columns: object) -> ResultsFolder:
        folder = ResultsFolder(tmp_path / name)
        folder.write_cell(CELL, SETTINGS)
        environment = folder.write_environment({"host": name})
        code = folder.write_code({"cache": "c0de"})
        folder.write_sweep(("policy=snapkv", f"results.dir={name}"), {CELL: 4})
        columns = {"environment": environment, "code": code, "value": 1.0, "metric": "nll"} | columns
        with Recorder(folder) as recorder:
            for sample in samples:
                recorder.append([make(cell=CELL, sample=sample, **columns)], {"curves": [curve(sample)]})
        return folder

    return write


def lines_of(folder: ResultsFolder) -> list[str]:
    return [line for path in sorted(folder.rows.iterdir()) for line in path.read_text().splitlines()]


def merged(tmp_path: Path, *sources: ResultsFolder) -> ResultsFolder:
    merge([source.path for source in sources], tmp_path / "merged", pytest.fail)
    return ResultsFolder(tmp_path / "merged")


def test_shards_become_one_folder(tmp_path: Path, shard) -> None:
    first, second = shard("first", 0, 2), shard("second", 1, 3)
    error = first.write_failure("Traceback")
    folder = merged(tmp_path, first, second)
    assert {row.sample: row for row in read_rows(folder, pytest.fail)} == {
        row.sample: row for source in (first, second) for row in read_rows(source)
    }
    assert sorted(line.sample for line in read_sidecar(folder, Curve, pytest.fail)) == [0, 1, 2, 3]
    assert folder.environments() == sorted(first.environments() + second.environments(), key=name_of)
    assert folder.read_cell(CELL) == SETTINGS and folder.read_requested() == {CELL: 4}
    assert (folder.path / "errors" / error.name).read_text() == "Traceback"
    load_table(folder, (), pytest.fail)  # nothing is damaged or missing
    manifest = read_manifest(folder)
    assert manifest is not None and manifest.rows == 4 and true_manifest(folder, pytest.fail)
    assert write_manifest(folder, None) == manifest
    for source in (first, second):  # copied as they are
        assert not differing(write_manifest(source, None), ResultsFolder(source.path))[0]
        assert all((folder.rows / path.name).read_bytes() == path.read_bytes() for path in source.rows.iterdir())


def test_equal_rows_are_taken_once(tmp_path: Path, shard) -> None:
    """Seconds and machines may differ, as in reports; the file that lost a line has a true note of its own."""
    first, second = shard("first", 0, 1), shard("second", 1, 2, decode_seconds=9.0)
    folder = merged(tmp_path, first, second)
    assert len(lines_of(folder)) == 3 and set(lines_of(folder)) < {*lines_of(first), *lines_of(second)}
    assert [row.decode_seconds for row in read_rows(folder, pytest.fail)] == [None, None, 9.0]
    load_table(folder, (), lambda text: pytest.fail(text) if "missing" not in text else None)


def test_the_longer_of_two_copies_is_taken(tmp_path: Path, shard) -> None:
    first = shard("first", 0, 1, 2)
    older = ResultsFolder(tmp_path / "older")
    older.rows.mkdir(parents=True)
    (path,) = first.rows.iterdir()
    (older.rows / path.name).write_bytes(path.read_bytes()[: path.stat().st_size // 3])
    folder = merged(tmp_path, older, first)
    assert lines_of(folder) == lines_of(first)
    (older.rows / path.name).write_text("{}\n")
    with pytest.raises(ValueError, match="have one name and other rows"):
        merge([older.path, first.path], tmp_path / "again", print)


def test_rows_that_contradict_each_other_are_refused(tmp_path: Path, shard) -> None:
    first, second = shard("first", 0, 1), shard("second", 1, value=2.0)
    with pytest.raises(ValueError, match=f"cell {CELL}, sample 1 has two outcomes: .* differ in value"):
        merged(tmp_path, first, second)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first", "second"]  # nothing stays


def test_a_row_that_did_not_fail_is_taken_and_other_code_may_only_agree(tmp_path: Path, shard) -> None:
    good, failed = shard("good", 0), shard("failed", 0, 1, value=None, error="out of memory")
    same = shard("same", 0, code="c0de11111111")
    rows = {row.sample: row for row in read_rows(merged(tmp_path, good, failed, same), pytest.fail)}
    assert [rows[sample].error for sample in (0, 1)] == [None, "out of memory"] and rows[0].code == "c0de11111111"
    other = shard("other", 0, code="c0de22222222", value=0.0)
    with pytest.raises(ValueError, match="two outcomes"):
        merge([good.path, other.path], tmp_path / "refused", pytest.fail)


def test_a_row_that_did_not_fail_is_taken_though_newer_code_failed(tmp_path: Path, shard) -> None:
    good = shard("good", 0, code="c0de11111111")
    failed = shard("failed", 0, code="c0de22222222", value=None, error="out of memory")
    (row,) = read_rows(merged(tmp_path, failed, good), pytest.fail)
    assert row.value == 1.0 and row.code == "c0de11111111"


def test_lines_that_do_not_count_stay_behind(tmp_path: Path, shard, make) -> None:
    first, second = shard("first", 0, 1), shard("second", 2)
    (path,) = second.rows.iterdir()
    path.write_bytes(path.read_bytes() + b'{"schema": 1, "torn')
    warnings: list[str] = []
    merge([first.path, second.path], tmp_path / "merged", warnings.append)
    assert any("torn last line dropped" in warning for warning in warnings)
    folder = ResultsFolder(tmp_path / "merged")
    assert sorted(json.loads(line)["sample"] for line in lines_of(folder)) == [0, 1, 2]


def test_a_changed_or_damaged_folder_is_refused(tmp_path: Path, shard) -> None:
    first, second = shard("first", 0), shard("second", 1)
    write_manifest(second, None)
    (path,) = (second.path / "curves").iterdir()
    kept = path.read_bytes()
    path.write_bytes(b"")
    with pytest.raises(ValueError, match=r"1 file of .*second changed or gone"):
        merged(tmp_path, first, second)
    path.write_bytes(kept)
    (first.path / "cells" / f"{CELL}.json").write_text("{}")
    with pytest.raises(ValueError, match="its name is not the hash of its content"):
        merged(tmp_path, first, second)


def test_a_link_out_of_a_folder_is_not_followed(tmp_path: Path, shard) -> None:
    first, second = shard("first", 0), shard("second", 1)
    (tmp_path / "secret.txt").write_text("secret")
    (first.path / "errors").mkdir()
    (first.path / "errors" / "a.txt").symlink_to(tmp_path / "secret.txt")
    with pytest.raises(ValueError, match=r"is a link to .*secret\.txt, outside of the folder"):
        merged(tmp_path, first, second)


def test_an_empty_target_is_filled_and_a_full_one_is_left(
    tmp_path: Path, shard, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = shard("first", 0, 2), shard("second", 1)
    (tmp_path / "merged").mkdir()
    assert main(["merge", str(first.path), str(second.path), "--out", str(tmp_path / "merged")]) == 0
    out, err = capsys.readouterr()
    assert "3 rows in" in out.replace("\n", " ") and "root " in out
    assert "1 of 4 rows are missing" in err
    with pytest.raises(ValueError, match="is not empty, and nothing is overwritten"):
        merged(tmp_path, first, second)


def test_a_file_without_the_note_of_its_writer_gets_none(tmp_path: Path, shard) -> None:
    first, second = shard("first", 0), shard("second", 0, 1)
    for path in (second.path / "finished").iterdir():
        path.unlink()
    folder = merged(tmp_path, first, second)
    assert len(list((folder.path / "finished").iterdir())) == 1
    assert [row.sample for row in read_rows(folder, pytest.fail)] == [0, 1]


def test_details_of_both_copies_of_a_rows_file_come_along(tmp_path: Path, shard) -> None:
    whole = shard("whole", 0, 1, 2)
    partly = ResultsFolder(shutil.copytree(whole.path, tmp_path / "partly"))
    (file,) = (partly.path / "curves").iterdir()
    file.write_bytes(file.read_bytes().splitlines(keepends=True)[0])
    folder = merged(tmp_path, partly, whole)
    assert [line.sample for line in read_sidecar(folder, Curve, pytest.fail)] == [0, 1, 2]
    file.write_text(curve(7) + "\n")
    with pytest.raises(ValueError, match="have one name and other lines"):
        merge([partly.path, whole.path], tmp_path / "another", pytest.fail)


def test_a_dry_merge_says_what_comes_from_where_and_writes_nothing(
    tmp_path: Path, shard, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, other = shard("whole", 0, 1, 2), shard("other", 1, 3)
    partly = ResultsFolder(shutil.copytree(whole.path, tmp_path / "partly"))
    (file,) = (partly.path / "curves").iterdir()
    file.unlink()
    before = sorted(tmp_path.rglob("*"))
    names = [str(folder.path) for folder in (partly, whole, other)]
    assert main(["merge", *names, "--out", str(tmp_path / "merged"), "--dry"]) == 0
    assert sorted(tmp_path.rglob("*")) == before
    lines = capsys.readouterr().out.splitlines()
    (beside,) = (other.path / "curves").iterdir()
    assert lines[:4] == [
        f"rows/{file.name}: 3 rows from {partly.path}",
        f"curves/{file.name}: from {whole.path}",
        f"rows/{beside.name}: 1 row from {other.path}",
        f"curves/{beside.name}: from {other.path}",
    ]
    assert f"cells: 1 file from {partly.path}" in lines and lines[-1] == "nothing was written"
