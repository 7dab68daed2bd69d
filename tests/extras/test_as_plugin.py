"""An extra that is taken out of the tree works as an installed package: nothing in the core knows where it lives."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from kvbench.cli.main import main
from tests.plugins import made_up

ROOT = Path(__file__).parents[2]
SCAN = Path(__file__).with_name("found_as_plugins.py")


def copied(tree: Path) -> None:
    """Copy the package to `tree`, with links to what it reads; its compiled modules save compiling them again."""
    shutil.copytree(ROOT / "kvbench", tree / "kvbench", ignore=shutil.ignore_patterns("tests", "*.min.js"))
    for name in ("conf", "models", "pyproject.toml"):
        (tree / name).symlink_to(ROOT / name)


def as_plugin(extra: str, tree: Path, site: Path) -> str:
    """Copy an extra of `tree` to a distribution in `site`; returns its package."""
    package = f"kvb_{extra}"
    folder = tree / "kvbench" / "extras" / extra
    files = {
        path.relative_to(folder).as_posix(): path.read_text("utf-8").replace(f"kvbench.extras.{extra}", package)
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".pyc" and "tests" not in path.parts[len(folder.parts) :]
    }
    made_up(site, package, files)
    return package


def moved(extra: str, tree: Path, site: Path) -> str:
    """Move an extra of `tree` to a distribution in `site`; returns its package."""
    package = as_plugin(extra, tree, site)
    shutil.rmtree(tree / "kvbench" / "extras" / extra)
    return package


LINES = (
    ("policy.apply=drop,d2o", "reader=dense,quest", "task.context_length=400"),
    ("task=trajectories_synthetic/likelihood", "task.context_length=1600"),
)
"""Cells of readers, of merging, of neither; then of a task."""
SAME = ("policy", "score", "store", "prediction", "scores", "kept_fraction", "kept_sha256", "bytes_held", "error")


RUN = "import sys; from kvbench.cli.main import main; sys.exit(any([main(words) for words in {!r}]))"


def words_of(folder: Path) -> list[list[str]]:
    every = ("policy=snapkv", "budget=0.3", "task.samples=1", "reference=none", f"results.dir={folder}", "--quiet")
    return [["run", *line, *every] for line in LINES]


def results(folder: Path) -> tuple[list[dict[str, Any]], set[tuple[str, ...]]]:
    """What the rows of a folder say, and the plugins of its cells."""
    rows = [json.loads(line) for file in (folder / "rows").glob("*.jsonl") for line in file.open(encoding="utf-8")]
    cells = [json.loads(file.read_text("utf-8")) for file in (folder / "cells").glob("*.json")]
    said = sorted(({name: row.get(name) for name in SAME} for row in rows), key=repr)
    return said, {tuple(cell.get("plugins", {})) for cell in cells}


def test_extras_work_as_plugins(tmp_path: Path) -> None:
    tree, site = tmp_path / "tree", tmp_path / "site"
    copied(tree)
    packages = {moved(extra, tree, site) for extra in ("readers", "merging", "trajectories")}
    path = os.pathsep.join(map(str, (tree, site)))
    command = [sys.executable, "-c", RUN.format(words_of(tmp_path / "theirs"))]
    subprocess.run(command, check=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, timeout=300)
    assert [main(words) for words in words_of(tmp_path / "ours")] == [0, 0]
    inside, outside = results(tmp_path / "ours"), results(tmp_path / "theirs")
    assert inside[0] == outside[0] and len(inside[0]) > 3 and not any(row["error"] for row in inside[0])
    assert inside[1] == {()} and {name for names in outside[1] for name in names} == packages


def test_every_extra_is_found_as_a_plugin(tmp_path: Path) -> None:
    """Each is taken away alone, so that no group is known only because the extra is there."""
    tree = tmp_path / "tree"
    copied(tree)
    extras = sorted(path.parent.name for path in (tree / "kvbench" / "extras").glob("*/__init__.py"))
    for extra in extras:
        as_plugin(extra, tree, tmp_path / "sites" / extra)
    command = [sys.executable, str(SCAN), str(tree / "kvbench" / "extras"), str(tmp_path / "sites")]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, timeout=300, text=True, stdout=subprocess.PIPE)
    assert (done.returncode, done.stdout.strip()) == (0, "") and len(extras) > 40
