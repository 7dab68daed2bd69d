"""The import graph of the package: no circles, nothing loose in its root; and a cell's name outlives a move."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

from kvbench.cli.main import main
from tests.repository import ROOT, code

PACKAGE = ROOT / "kvbench"


def circle(imports: Mapping[str, set[str]]) -> list[str]:
    """Modules that import each other in a circle, or nothing."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def loaded_by_name(file: Path) -> set[str]:
    """Modules of the package that a file names in `import_module`."""
    return set(re.findall(r'import_module\("(kvbench\.[\w.]+)"\)', file.read_text("utf-8")))


def test_no_two_files_import_each_other_in_a_circle() -> None:
    """Imports inside functions and by name count too. A package's `__init__.py` is a file like others."""
    graph = grimp.build_graph("kvbench", cache_dir=None)
    assert {"kvbench.cache.kv_cache", "kvbench.eviction.evict", "kvbench.cli.run"} <= graph.modules
    imports = {module: set(graph.find_modules_directly_imported_by(module)) for module in graph.modules}
    for file in code():
        module = ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        imports[module] |= loaded_by_name(file)
    assert "kvbench.notebook.sweep" in imports["kvbench"]
    assert circle(imports) == []


def test_the_root_of_the_package_holds_packages_only() -> None:
    files = {path.name for path in PACKAGE.iterdir() if path.is_file()}
    assert files == {"__init__.py", "__main__.py", "py.typed"}


PLAN = [
    *("policy=snapkv", "score=attn,obcache_joint", "budget=0.2", "task=ruler/niah_single_1", "task.samples=1"),
    "reference=none",
]


def planned_here(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The names of the cells that `kvbench plan` of this package lists."""
    assert main(["plan", *PLAN]) == 0
    return cells_in(capsys.readouterr().out)


def planned(folder: Path, results: Path) -> list[str]:
    """The names of the cells that `kvbench plan` of the package in `folder` lists."""
    done = subprocess.run(
        [sys.executable, "-m", "kvbench", "plan", *PLAN, f"results.dir={results}"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    return cells_in(done.stdout)


def cells_in(printed: str) -> list[str]:
    return re.findall(r"^[0-9a-f]{16}\b", printed, flags=re.MULTILINE)


def test_a_score_whose_file_moves_keeps_the_names_of_its_cells(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = planned_here(capsys)
    copy = tmp_path / "checkout"
    for name in ("kvbench", "conf", "results/papers"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("tests", "*.min.js"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    shutil.move(copy / "kvbench/eviction/scores/obcache.py", copy / "kvbench/eviction/joint_saliency.py")
    for file in (*copy.glob("kvbench/**/*.py"), *copy.glob("conf/**/*.yaml")):
        text = file.read_text("utf-8")
        moved = text.replace("kvbench.eviction.scores.obcache", "kvbench.eviction.joint_saliency")
        moved = moved.replace("OBCacheJoint", "JointSaliency")
        if moved != text:
            file.write_text(moved, "utf-8")
    assert "JointSaliency" in (copy / "conf/score/obcache_joint.yaml").read_text("utf-8")
    assert len(before) == 2 and planned(copy, tmp_path / "results") == before
