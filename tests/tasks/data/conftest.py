"""A local host, a lock that names it, and a clock that does not wait."""

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from kvbench.tasks.data import lock
from kvbench.tasks.data.lock import Download, read_lock
from tests.tasks.data.host import Host, hosting

CONTENT = bytes(range(251)) * 1999
"""Long enough that chunks, drops and offsets differ from one another."""


class Silent:
    """A watcher that remembers."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self.begun: list[tuple[str, int | None, int]] = []
        self.received = 0

    def say(self, text: str) -> None:
        self.messages.append(text)

    def begin(self, name: str, total: int | None, had: int) -> None:
        self.begun.append((name, total, had))

    def advance(self, count: int) -> None:
        self.received += count


@pytest.fixture
def host() -> Iterator[Host]:
    with hosting() as server:
        yield server


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that would have been waited, a hundredth at most: who waits for a process must not only ask."""
    waited: list[float] = []
    sleep = time.sleep

    def wait(seconds: float) -> None:
        waited.append(seconds)
        sleep(min(seconds, 0.01))

    monkeypatch.setattr(time, "sleep", wait)
    return waited


@pytest.fixture
def online(host: Host, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The local host is the hub, an empty folder its cache; returns that folder."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", host.url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1000)
    for name in ("KVBENCH_DATA", "KVBENCH_HOME", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "cache"


@pytest.fixture
def root(tmp_path: Path, online: Path, waits: list[float]) -> Path:
    """A folder to pull into, which is not there yet."""
    return tmp_path / "root"


def sha(content: bytes) -> str:
    """SHA-256 of bytes."""
    return hashlib.sha256(content).hexdigest()


def plain(host: Host, name: str, content: bytes | None, kind: str = "file", **more: Any) -> dict[str, Any]:
    """A group of a lock: one file at an address of the host, pinned where its content is given."""
    pin = {"sha256": sha(content) if content is not None else None, "bytes": None if content is None else len(content)}
    return {
        "kind": kind,
        "url": f"{host.url}/{{revision}}/{{name}}",
        "revision": "r1",
        "files": {name: {"to": f"mine/{name}", **pin, **more}},
    }


def hub(name: str, revision: str | None, **file: object) -> dict[str, object]:
    """A group of a lock: one file of a data set of the hub."""
    pin = {"to": f"mine/{name}", "sha256": None, "bytes": None}
    return {"kind": "file", "repo": "some/one", "revision": revision, "files": {name: {**pin, **file}}}


def only(locked: Path) -> Download:
    """The one download of a lock."""
    ((download,),) = [source.downloads for source in read_lock(locked).values()]
    return download


def files(root: Path) -> list[str]:
    """What lies under a root for tasks to read."""
    under = (path for path in root.rglob("*") if path.is_file() and ".pull" not in path.parts)
    return sorted(path.relative_to(root).as_posix() for path in under)


def left(root: Path) -> list[str]:
    """What a pull has left to be continued."""
    return sorted(path.name for path in (root / ".pull").iterdir() if path.suffix != ".lock")


Locked = Callable[..., Path]


@pytest.fixture
def locked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Locked:
    """Make groups the downloads of the source `mine` and the lock of kvbench; returns its file."""

    def write(*groups: dict[str, Any], licence: str = "CC BY 4.0") -> Path:
        file = tmp_path / "lock.json"
        mine = {"tasks": "a test", "patterns": ["mine/*"], "licence": licence, "downloads": list(groups)}
        file.write_text(json.dumps({"sources": {"mine": mine}}))
        monkeypatch.setattr(lock, "FILE", file)
        return file

    return write
