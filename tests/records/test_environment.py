import json
import subprocess
from importlib import metadata
from pathlib import Path

import pytest

from kvbench.records import environment, environment_id
from kvbench.records.environment import VARIABLES, source

ROOT = Path(__file__).resolve().parents[2]


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=nobody", "-c", "user.email=nobody@example.org", "-c", "commit.gpgsign=false"]
    return subprocess.run(
        ["git", "-C", str(folder), *who, *arguments], check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with a package and settings beside it, one commit."""
    for name in ("package/a.py", "conf/run.yaml", "README.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("1")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    return tmp_path


def test_secrets_are_not_recorded() -> None:
    secrets = {
        name: "hunter2" for name in ("HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "HOME", "omp_num_threads")
    }
    recorded = environment("cpu", {"OMP_NUM_THREADS": "3", "CUDA_VISIBLE_DEVICES": "", **secrets})
    assert recorded["variables"] == {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "3"}
    assert "hunter2" not in json.dumps(recorded)
    assert not [
        name for name in VARIABLES if any(word in name for word in ("TOKEN_", "_TOKEN", "KEY", "SECRET", "PASS"))
    ]


def test_variables_and_installed_packages_of_the_process_are_the_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.setenv("HF_TOKEN", "hunter2")
    recorded = environment("cpu")
    assert recorded["variables"]["OMP_NUM_THREADS"] == "7" and "hunter2" not in json.dumps(recorded)
    assert all(recorded["packages"][name] == metadata.version(name) for name in ("torch", "numpy"))


def test_device_and_variables_change_the_id() -> None:
    ids = {
        environment_id(environment(device, variables))
        for device in ("cpu", {"name": "cuda", "memory_bytes": 1})
        for variables in ({}, {"OMP_NUM_THREADS": "1"}, {"OMP_NUM_THREADS": "2"})
    }
    assert len(ids) == 6
    assert environment_id(environment("cpu", {})) == environment_id(environment("cpu", {"HF_TOKEN": "hunter2"}))


def test_a_checkout_has_its_commit_and_is_dirty_by_what_runs(checkout: Path) -> None:
    commit = git(checkout, "rev-parse", "HEAD")
    for harmless in ("README.md", "x.txt"):
        (checkout / harmless).write_text("2")
    assert source(checkout / "package") == {"commit": commit, "dirty": False, "repository": None}
    for changed in ("package/a.py", "package/new.py", "conf/run.yaml"):
        (checkout / changed).write_text("2")
        assert source(checkout / "package")["dirty"] is True, changed
        git(checkout, "clean", "-fdq")
        git(checkout, "checkout", "-q", ".")


def test_a_repository_is_named_by_its_pages_and_without_secrets(checkout: Path) -> None:
    pages = {
        "https://user:token@example.org/a/b.git": "https://example.org/a/b",
        "git@example.org:a/b.git": "https://example.org/a/b",
        "ssh://git@example.org:22/a/b/": "https://example.org/a/b",
        "/srv/git/b.git": None,
        "../b": None,
    }
    for remote, page in pages.items():
        git(checkout, "config", "remote.origin.url", remote)
        assert source(checkout / "package")["repository"] == page, remote


def test_a_copy_in_a_foreign_repository_and_one_without_git_have_no_commit(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown = dict.fromkeys(("commit", "dirty", "repository"))
    (checkout / ".gitignore").write_text("venv/\n")
    (checkout / "venv" / "kvbench").mkdir(parents=True)
    (checkout / "venv" / "kvbench" / "a.py").write_text("1")
    assert source(checkout / "venv" / "kvbench") == unknown
    monkeypatch.setenv("PATH", str(checkout))
    assert source(checkout / "package") == unknown
