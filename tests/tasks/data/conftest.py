"""A local host, a lock that names it, and a clock that does not wait."""

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from kvbench.tasks.data import download, lock
from tests.tasks.data.host import Host, hosting


@pytest.fixture
def host() -> Iterator[Host]:
    with hosting() as server:
        yield server


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that would have been waited."""
    waited: list[float] = []
    monkeypatch.setattr(download.time, "sleep", waited.append)
    return waited


@pytest.fixture
def online(host: Host, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The local host is the hub, an empty folder its cache; returns that folder."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", host.url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
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
