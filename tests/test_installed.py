"""A wheel in an environment of its own: run from another folder, with nothing written where it is installed."""

import json
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from kvbench import __version__
from tests.test_package import wheel

pytestmark = pytest.mark.slow
__all__ = ["wheel"]


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of a new environment with the wheel alone; what it needs is that of this one, by a path file."""
    folder = tmp_path_factory.mktemp("installed") / "env"
    venv.create(folder, with_pip=False, symlinks=True)
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install", "--no-index"]
    subprocess.run([*pip, "--no-deps", "--quiet", "--disable-pip-version-check", str(wheel)], check=True, timeout=300)
    (site,) = folder.glob("lib/python3*/site-packages")
    (site / "what_it_needs.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    for path in (site / "kvbench").rglob("*"):
        path.chmod(path.stat().st_mode & ~0o222)
    return folder / "bin"


def run(installed: Path, folder: Path, *words: str) -> str:
    """The output of a command in a folder where nothing of a checkout is found."""
    names = ("PYTHONPATH", "KVBENCH_DATA", "KVBENCH_SHARED", "PYTHONDONTWRITEBYTECODE")
    clean = {name: value for name, value in os.environ.items() if name not in names}
    clean |= {"HOME": str(folder), "KVBENCH_HOME": str(folder / "home")}
    done = subprocess.run(words, cwd=folder, env=clean, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_wheel_runs_from_another_folder_and_writes_nothing_home(installed: Path, tmp_path: Path) -> None:
    (site,) = installed.parent.glob("lib/python3*/site-packages/kvbench")
    before = {path: path.stat().st_mtime_ns for path in site.rglob("*")}
    kvbench, python = str(installed / "kvbench"), str(installed / "python")
    assert run(installed, tmp_path, kvbench, "--version").strip() == __version__
    checks = {check["name"]: check for check in json.loads(run(installed, tmp_path, kvbench, "doctor", "--json"))}
    for name in ("settings", "reference model"):
        assert checks[name]["mark"] == "ok" and Path(checks[name]["text"]).is_relative_to(site)
    settings = ("policy=full,snapkv", "budget=0.2", "task.samples=1")
    assert "snapkv" in run(installed, tmp_path, python, "-m", "kvbench", "run", *settings)
    assert "snapkv" in run(installed, tmp_path, kvbench, "report", "table", "--format", "csv")
    assert "published" in run(installed, tmp_path, kvbench, "paper", "obcache/table1", "--published")
    assert "obcache_joint" in run(installed, tmp_path, kvbench, "list", "scores")
    assert "complete -o default" in run(installed, tmp_path, kvbench, "completion", "bash")
    assert {path: path.stat().st_mtime_ns for path in site.rglob("*")} == before
    assert {path.name for path in tmp_path.iterdir()} <= {"results", "home", ".cache", ".triton", ".config"}
