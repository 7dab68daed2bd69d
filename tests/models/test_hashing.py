"""Hashes of large files are remembered, and forgotten as soon as the file may be another."""

import hashlib
import os
from pathlib import Path

import pytest

from kvbench.models.loading import spec
from kvbench.models.loading.spec import content_hash, file_hash


@pytest.fixture
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Files that were really read; everything of ten bytes is large."""
    monkeypatch.setenv("KVBENCH_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(spec, "LARGE", 10)
    read: list[Path] = []
    whole = spec._hash

    def counting(path: Path, state: str) -> str:
        read.append(path)
        return whole(path, state)

    monkeypatch.setattr(spec, "_hash", counting)
    return read


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A large one."""
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"ten bytes and more")
    return path


def test_a_file_is_read_once_until_it_changes(file: Path, counted: list[Path]) -> None:
    assert [file_hash(file) for _ in range(3)] == [hashlib.sha256(b"ten bytes and more").hexdigest()] * 3
    assert len(counted) == 1
    stat = file.stat()
    file.write_bytes(b"ten bytes and MORE")
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert file_hash(file) == hashlib.sha256(b"ten bytes and MORE").hexdigest(), "the same size and time of writing"
    assert len(counted) == 2


def test_small_files_are_always_read(tmp_path: Path, counted: list[Path]) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert content_hash(tmp_path, ["*.json"]) == content_hash(tmp_path, ["*.json"])
    assert len(counted) == 2 and not (tmp_path / "home").exists()


@pytest.mark.parametrize("damage", ["", "cut"])
def test_a_damaged_memory_is_no_memory(tmp_path: Path, file: Path, counted: list[Path], damage: str) -> None:
    expected = file_hash(file)
    (known,) = (tmp_path / "home" / "hashes").iterdir()
    known.write_text(damage)
    assert file_hash(file) == expected and len(counted) == 2
    assert known.read_text() == expected


def test_a_home_that_cannot_be_written_costs_time_only(
    file: Path, counted: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVBENCH_HOME", str(file / "home"))
    assert file_hash(file) == file_hash(file) and len(counted) == 2
