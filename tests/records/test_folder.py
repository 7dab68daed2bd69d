import json
import os
import re
from pathlib import Path

import pytest

from kvbench.records import Recorder, ResultsFolder, check_writable, environment_id
from kvbench.records.environment import content_hash
from kvbench.support.errors import UserError


def everything(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_a_cell_is_written_once_and_whole(tmp_path: Path) -> None:
    results = ResultsFolder(tmp_path / "runs")
    name = content_hash({"policy": {"window": 16}})[:16]
    path = results.write_cell(name, {"policy": {"window": 16}})
    results.write_cell(name, {"policy": {"window": 16}})
    assert path == tmp_path / "runs" / "cells" / f"{name}.json"
    assert results.read_cell(name) == {"policy": {"window": 16}}
    assert results.read_cell("0000") is None
    assert everything(tmp_path / "runs") == {"cells", f"cells/{name}.json"}


def test_a_cell_that_was_edited_is_refused_and_written_again(tmp_path: Path) -> None:
    results, description = ResultsFolder(tmp_path), {"policy": {"window": 16}}
    name = content_hash(description)[:16]
    path = results.write_cell(name, description)
    changed = f"{name}.json was changed: its name is not the hash of its content: remove"
    for edited in ({"policy": {"window": 32}}, {"policy": {}}, {"policy": {"window": 16}, "seed": 1}):
        path.write_text(json.dumps(edited))
        with pytest.raises(UserError, match=changed):
            results.read_cell(name)
        results.write_cell(name, description)
        assert results.read_cell(name) == description


def test_a_description_that_is_no_json_or_interrupted_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(ValueError):
        ResultsFolder(tmp_path).write_cell("0123abcd", {"window": float("nan")})
    assert everything(tmp_path) == set()
    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        ResultsFolder(tmp_path).write_cell("0123abcd", {})
    assert everything(tmp_path) == {"cells"}


def test_of_several_requests_of_a_cell_the_most_samples_count(tmp_path: Path) -> None:
    """Whatever the order in which their files are read."""
    results = ResultsFolder(tmp_path)
    for samples in (3, 9, *range(8)):
        results.write_sweep([f"task.samples={samples}"], {"ab": samples, f"only-{samples}": samples})
    requested = results.read_requested()
    assert requested["ab"] == 9 and requested["only-3"] == 3
    results.withdraw_cells(["task.samples=9"], ["ab"])
    assert results.read_requested() == requested | {"ab": 7}


def test_an_environment_is_filed_under_the_hash_of_its_content(tmp_path: Path) -> None:
    results = ResultsFolder(tmp_path)
    name = results.write_environment({"device": "cpu", "python": "3.11"})
    assert re.fullmatch("[0-9a-f]{12}", name) and name == environment_id({"device": "cpu", "python": "3.11"})
    assert name == results.write_environment({"python": "3.11", "device": "cpu"})
    assert name != environment_id({"device": "cuda", "python": "3.11"})
    assert json.loads((tmp_path / "environments" / f"{name}.json").read_text()) == results.read_environment(name)


def test_tracebacks_get_files_of_their_own(tmp_path: Path) -> None:
    results = ResultsFolder(tmp_path)
    paths = [results.write_error(text) for text in ("first", "second \ud800")]
    assert paths[0] != paths[1] and {path.parent for path in paths} == {tmp_path / "errors"}
    assert paths[0].read_text() == "first" and paths[1].read_text() == "second \\ud800"


def test_a_writable_folder_passes_and_stays_as_it_was(tmp_path: Path, make) -> None:
    check_writable(tmp_path / "not" / "there" / "yet")
    assert everything(tmp_path) == set()
    with Recorder(tmp_path) as recorder:
        recorder.append([make()])
    before = everything(tmp_path)
    check_writable(str(tmp_path))
    assert everything(tmp_path) == before


def test_relative_folders_are_taken_from_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    check_writable("results/runs")
    (tmp_path / "results").write_text("")
    with pytest.raises(ValueError, match="'results/runs' cannot be written: 'results': is not a folder"):
        check_writable("results/runs")


def refuses(path: Path) -> bool:
    """Whether a folder is refused in a line that names it and a fix."""
    with pytest.raises(ValueError) as error:
        check_writable(path)
    text, fix = str(error.value), "name a folder you may write to with results.dir=FOLDER"
    return (
        text.startswith(f"results folder {str(path)!r} cannot be written: ") and text.endswith(fix) and "\n" not in text
    )


def test_a_folder_that_cannot_be_written_is_named_with_a_fix(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "rows").write_text("")
    before = everything(tmp_path)
    for name in ("file", "file/runs", "link", "runs", "x" * 300):
        assert refuses(tmp_path / name), name
    assert everything(tmp_path) == before


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs /proc, where not even root may write")
def test_a_system_folder_cannot_be_written() -> None:
    assert refuses(Path("/proc/kvbench"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_cannot_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert refuses(tmp_path / "runs")
