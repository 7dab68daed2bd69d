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
    for edited in ({"policy": {"window": 32}}, {"policy": {}}, {"policy": {"window": 16}, "seed": 1}):
        path.write_text(json.dumps(edited))
        with pytest.raises(
            UserError, match=f"{name}.json was changed: its name is not the hash of its content: remove"
        ):
            results.read_cell(name)
        results.write_cell(name, description)
        assert results.read_cell(name) == description


def test_a_description_that_is_no_json_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError):
        ResultsFolder(tmp_path).write_cell("0123abcd", {"window": float("nan")})
    assert everything(tmp_path) == set()


def test_an_interrupted_write_leaves_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        ResultsFolder(tmp_path).write_cell("0123abcd", {})
    assert everything(tmp_path) == {"cells"}


def test_an_environment_is_filed_under_the_hash_of_its_content(tmp_path: Path) -> None:
    results = ResultsFolder(tmp_path)
    name = results.write_environment({"device": "cpu", "python": "3.11"})
    assert re.fullmatch("[0-9a-f]{12}", name)
    assert (
        name
        == results.write_environment({"python": "3.11", "device": "cpu"})
        == environment_id({"device": "cpu", "python": "3.11"})
    )
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


def blocked(tmp_path: Path, how: str) -> Path:
    if how == "a file":
        (tmp_path / "file").write_text("")
        return tmp_path / "file"
    if how == "under a file":
        (tmp_path / "file").write_text("")
        return tmp_path / "file" / "runs"
    if how == "rows is a file":
        (tmp_path / "rows").write_text("")
        return tmp_path
    if how == "a dangling link":
        (tmp_path / "link").symlink_to(tmp_path / "nowhere")
        return tmp_path / "link"
    if how == "too long a name":
        return tmp_path / ("x" * 300)
    if how == "no permission":
        if os.geteuid() == 0:
            pytest.skip("root may write everywhere")
        tmp_path.chmod(0o500)
        return tmp_path / "runs"
    assert how == "a system folder"
    if not Path("/proc/self").is_dir():
        pytest.skip("needs /proc, where not even root may write")
    return Path("/proc/kvbench")


@pytest.mark.parametrize(
    "how",
    [
        "a file",
        "under a file",
        "rows is a file",
        "a dangling link",
        "too long a name",
        "no permission",
        "a system folder",
    ],
)
def test_a_folder_that_cannot_be_written_is_named_with_a_fix(tmp_path: Path, how: str) -> None:
    path = blocked(tmp_path, how)
    before = everything(tmp_path)
    with pytest.raises(ValueError) as error:
        check_writable(path)
    assert str(error.value).startswith(f"results folder {str(path)!r} cannot be written: ")
    assert str(error.value).endswith("name a folder you may write to with results.dir=FOLDER")
    assert "\n" not in str(error.value)
    assert everything(tmp_path) == before
