"""Data on disk: found under data.root, hashed by name and content, and explained where it is missing."""

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from kvbench.tasks import files
from kvbench.tasks.data.lock import read_lock
from kvbench.tasks.files import FromFiles, find, folder, limit_samples, listing

LOCK = read_lock()
HERE = ("paul_graham_essays", "pg19", "longbench", "infinitebench")
"""Sources that the shared files hold."""


@dataclass(frozen=True)
class Books(FromFiles):
    """A task over two books."""

    name: str = "books"
    names: tuple[str, ...] = ("pg19/a.txt", "pg19/b.txt")

    @property
    def files(self) -> tuple[str, ...]:
        return self.names


@pytest.fixture
def root(tmp_path: Path) -> str:
    (tmp_path / "pg19").mkdir()
    for name in "ba":
        (tmp_path / "pg19" / f"{name}.txt").write_text(name)
    return str(tmp_path)


def test_the_setting_wins_over_the_variable_over_the_default(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("KVBENCH_DATA", raising=False)
    monkeypatch.delenv("KVBENCH_HOME", raising=False)
    assert folder(None) == Path("data")
    monkeypatch.setenv("KVBENCH_HOME", "/home")
    assert folder(None) == Path("/home/data") and folder("here") == Path("here")
    monkeypatch.setenv("KVBENCH_DATA", "/there")
    assert folder(None) == Path("/there") and folder("here") == Path("here")


def test_files_are_found_and_listed_in_order(root: str):
    assert find(root, "pg19/a.txt").read_text() == "a"
    assert listing(root, "pg19/*.txt") == ("pg19/a.txt", "pg19/b.txt")


def test_a_hash_is_that_of_names_and_bytes(root: str, tmp_path: Path):
    before = Books(root=root).data_sha256
    moved = tmp_path / "moved"
    (tmp_path / "pg19").rename(moved)
    (tmp_path / "other").mkdir()
    moved.rename(tmp_path / "other" / "pg19")
    assert Books(root=str(tmp_path / "other")).data_sha256 == before
    book = tmp_path / "other" / "pg19" / "a.txt"
    book.write_text("c")
    os.utime(book, ns=(1, 1))
    changed = Books(root=str(tmp_path / "other")).data_sha256
    assert changed != before
    assert Books(root=str(tmp_path / "other"), names=("pg19/a.txt",)).data_sha256 not in (before, changed)
    assert Books(names=()).data_sha256 is None


def test_more_samples_than_there_are_become_all_of_them(root: str):
    @dataclass(frozen=True)
    class Sampled(Books):
        samples: int = 50

    for name, samples, available, limited in (("a", 2, 3, 2), ("a", 50, 3, 3), ("a", 50, 0, 1), ("absent", 50, 3, 50)):
        task = Sampled(root=root, names=(f"pg19/{name}.txt",), samples=samples)
        limit_samples(task, lambda available=available: available)
        assert task.samples == limited


def test_what_is_missing_is_named_with_its_layout_and_command(tmp_path: Path):
    for look in (
        lambda: find(str(tmp_path), "longbench/qasper.jsonl"),
        lambda: listing(str(tmp_path), "longbench/*.jsonl"),
    ):
        with pytest.raises(FileNotFoundError) as error:
            look()
        fetched = f"kvbench data pull longbench data.root={tmp_path} fetches it"
        for word in (fetched, "data.root=FOLDER", "longbench/"):
            assert word in str(error.value)
    with pytest.raises(FileNotFoundError, match="name another folder"):
        find(str(tmp_path), "mine/x.txt")


def test_a_source_lies_in_its_own_folder_and_can_be_fetched(tmp_path: Path):
    for name, source in LOCK.items():
        assert all(file.startswith(f"{name}/") for file in source.patterns)
        assert files.absent(str(tmp_path), source) == list(source.patterns)
    assert files.command(None, "pg19") == "kvbench data pull pg19"
    assert files.command("my data", "pg19") == "kvbench data pull pg19 data.root='my data'"


@pytest.mark.parametrize("name", HERE)
def test_the_shared_data_is_laid_out_as_expected(shared: Path, name: str):
    """`ruler/` is not: it holds the output of the generators rather than the passages they read."""
    assert files.absent(str(shared / "data"), LOCK[name]) == []
