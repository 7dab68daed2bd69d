"""An extra that is taken out of the tree works as an installed package: nothing in the core knows where it lives."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.plugins import made_up

ROOT = Path(__file__).parents[2]


def moved(extra: str, tree: Path, site: Path) -> str:
    """Copy the package to `tree`, and move one extra from there to a distribution in `site`; returns its package."""
    package = f"kvb_{extra}"
    leave = shutil.ignore_patterns("__pycache__", "*.min.js")
    shutil.copytree(ROOT / "kvbench", tree / "kvbench", ignore=leave)
    for name in ("conf", "models", "pyproject.toml"):
        (tree / name).symlink_to(ROOT / name)
    folder = tree / "kvbench" / "extras" / extra
    files = {
        path.relative_to(folder).as_posix(): path.read_text("utf-8").replace(f"kvbench.extras.{extra}", package)
        for path in folder.rglob("*")
        if path.is_file()
    }
    made_up(site, package, files)
    shutil.rmtree(folder)
    return package


def results(tree: Path, site: Path | None, folder: Path, *words: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The rows of a run in a tree, and the plugins of one of its cells."""
    path = os.pathsep.join(map(str, (tree, site) if site else (tree,)))
    task = ("task.samples=1", "task.context_length=1600", "reference=none", f"results.dir={folder}")
    command = [sys.executable, "-m", "kvbench", "run", "policy=snapkv", "budget=0.3", *words, *task, "--quiet"]
    subprocess.run(command, check=True, cwd=folder.parent, env={**os.environ, "PYTHONPATH": path}, timeout=300)
    rows = [json.loads(line) for file in (folder / "rows").glob("*.jsonl") for line in file.open()]
    cell = json.loads((folder / "cells" / f"{rows[0]['cell']}.json").read_text("utf-8"))
    return rows, cell.get("plugins", {})


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ("readers", "reader=quest"),
        ("merging", "policy.apply=d2o"),
        ("trajectories", "task=trajectories_synthetic/likelihood"),
    ],
)
def test_an_extra_works_as_a_plugin(extra: str, words: str, tmp_path: Path) -> None:
    package = moved(extra, tmp_path / "tree", tmp_path / "site")
    (inside,), none = results(ROOT, None, tmp_path / "ours", words)
    (outside,), plugins = results(tmp_path / "tree", tmp_path / "site", tmp_path / "theirs", words)
    same = ("policy", "score", "store", "prediction", "scores", "kept_fraction", "kept_sha256", "bytes_held", "error")
    assert {name: inside.get(name) for name in same} == {name: outside.get(name) for name in same}
    assert inside["error"] is None and not none
    assert list(plugins) == [package]
