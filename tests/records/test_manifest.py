"""What a folder holds as one hash: written by runs and `kvbench pack`, refused or not cited where it is not true."""

from pathlib import Path

import pytest

from kvbench.cli.main import main
from kvbench.records import Recorder, ResultsFolder
from kvbench.records.manifest import NAME, lacks_files, read_manifest, true_manifest, write_manifest


@pytest.fixture
def folder(tmp_path: Path, make) -> ResultsFolder:
    with Recorder(tmp_path) as recorder:
        recorder.append([make(sample=0), make(sample=1)], {"kept": ["{}"]})
    return ResultsFolder(tmp_path)


def test_a_manifest_lists_files_and_rows_and_is_cited(folder: ResultsFolder) -> None:
    assert true_manifest(folder, pytest.fail) is None  # there is none
    manifest = write_manifest(folder, None)
    assert read_manifest(folder) == manifest and manifest.rows == 2
    assert [path.partition("/")[0] for path in manifest.files] == ["rows", "kept", "finished"]
    assert true_manifest(folder, pytest.fail) == manifest
    assert str(manifest) == f"2 rows in 3 files, manifest {manifest.root[:16]}"
    assert write_manifest(folder, None) == manifest


def test_a_root_is_of_every_byte_and_every_file(folder: ResultsFolder, make) -> None:
    root = write_manifest(folder, None).root
    (kept,) = (folder.path / "kept").iterdir()
    kept.write_text("[]\n")
    messages: list[str] = []
    assert true_manifest(folder, messages.append) is None
    assert "does not describe the folder: 1 file changed or gone: kept/" in messages[0]
    assert write_manifest(folder, None).root != root
    with Recorder(folder) as recorder:
        recorder.append([make(sample=2)])
    assert true_manifest(folder, messages.append) is None and "2 files not listed" in messages[1]


def test_what_a_manifest_lists_is_not_described_anew_by_a_run(folder: ResultsFolder, make) -> None:
    """A damaged file keeps its entry, so that it goes on to be told of."""
    before = write_manifest(folder, None)
    (kept,) = (folder.path / "kept").iterdir()
    kept.write_text("[]\n")
    with Recorder(folder) as recorder:
        recorder.append([make(sample=2)])
    after = write_manifest(folder, before)
    assert after.rows == 3 and after.files.items() > before.files.items()
    assert true_manifest(folder, lambda text: None) is None


def test_a_run_that_failed_after_its_rows_lacks_a_manifest(folder: ResultsFolder) -> None:
    assert lacks_files(None, folder)
    manifest = write_manifest(folder, None)
    assert not lacks_files(manifest, folder)
    (folder.path / "finished" / "new.json").write_text("{}")
    assert lacks_files(manifest, folder)
    path = folder.path / next(iter(manifest.files))
    path.write_bytes(path.read_bytes() + b" ")
    assert not lacks_files(manifest, folder)  # a file was changed: the manifest stays, which tells of it


def test_an_edited_manifest_is_refused(folder: ResultsFolder) -> None:
    write_manifest(folder, None)
    path = folder.path / NAME
    path.write_text(path.read_text().replace('"rows": 2', '"rows": 3'))
    with pytest.raises(ValueError, match="was changed: its root is not the hash of its files"):
        read_manifest(folder)


def test_pack_describes_a_folder_and_refuses_a_changed_one(
    folder: ResultsFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    pack = ["pack", "--results", str(folder.path)]
    assert main(pack) == 0
    written = (folder.path / NAME).stat().st_ino
    assert main(pack) == 0
    assert (folder.path / NAME).stat().st_ino == written  # so that a folder which cannot be written can be checked
    manifest = read_manifest(folder)
    assert manifest is not None and f"root {manifest.root}" in capsys.readouterr().out
    (kept,) = (folder.path / "kept").iterdir()
    kept.unlink()
    assert main(pack) == 2
    assert "1 file of" in (line := capsys.readouterr().err) and "put them back, or remove manifest.json" in line
    assert main(["pack", "--results", str(folder.path / "nowhere")]) == 3
