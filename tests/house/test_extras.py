"""Extras and the core: what the core may not say, and that an extra which is taken away leaves the rest whole."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import grimp
import pytest

from kvbench.config.entries import load_entry, step_parts, step_settings
from kvbench.support.paths import extras
from kvbench.support.plugins import groups, held_groups, items
from tests.repository import ROOT, parsed

CORE = [file for file in (ROOT / "kvbench").rglob("*.py") if "extras" not in file.parts]
NAMESAKES = {"fp8", "hub", "int4", "int8", "kvpress", "think", "wandb"}
"""Names that mean other things too: the hub of models, types of numbers, a tag of reasoning, packages."""


def words() -> set[str]:
    """Settings that extras bring, and the names of their members."""
    kinds = {name.rpartition("/")[2] for name in items("step") if "/" in name}
    kinds |= {name.rpartition("/")[2] for name in brought("allocation")}
    by_code = {"command", "conform", "convert", "hint", "kernels", "model_file", "paper", "plan", "plot", "report"}
    settled = {*groups()} - by_code - {"allocation", "step"}
    members = {name.partition("/")[0] for group in settled for name in brought(group)}
    settings = {f"policy.{name}" for name in step_settings()} | {f"{group}=" for group in held_groups()}
    members -= NAMESAKES | {*held_groups().values()}
    return settings | (kinds - NAMESAKES) | members | {f"{part}=" for part in step_parts()}


def brought(group: str) -> list[str]:
    """The names of a group that extras bring."""
    return [name for name, item in items(group).items() if "extras" in item.path.parts]


def said(file: Path) -> Iterator[str]:
    """The texts of a file but docstrings, and the names of what it imports."""
    nodes = [*ast.walk(parsed(file))]
    prose = {node.value for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in prose:
            yield node.value


def test_tasks_of_extras_do_without_torch() -> None:
    """As those of the core, which import-linter checks."""
    graph = grimp.build_graph("kvbench", include_external_packages=True, cache_dir=None)
    for module in {load_entry("task", name)["_target_"].rpartition(".")[0] for name in brought("task")}:
        assert not graph.find_upstream_modules(module) & {"torch", "transformers"}, module


def test_the_core_says_no_word_of_an_extra() -> None:
    named = "|".join(map(re.escape, sorted(words())))
    pattern = re.compile(rf"(?<![\w.])({named})(?!\w)|kvbench\.extras\.(?!\{{)\w")
    found = {file.relative_to(ROOT).as_posix() for file in CORE for text in said(file) if pattern.search(text)}
    assert found == set()


@pytest.mark.parametrize("folder", extras(), ids=lambda folder: folder.name)
def test_an_extra_is_code_and_settings(folder: Path) -> None:
    """Its classes are named by files of its own; no file of the core's settings names one. A page has its name."""
    assert {page.name for page in folder.glob("*.md")} <= {f"{folder.name}.md"}
    files = [*(folder / "conf").rglob("*.yaml")]
    targets = [line.split()[1] for file in files for line in file.read_text("utf-8").splitlines() if "_target_" in line]
    assert targets and all(target.startswith("kvbench.") for target in targets)
    assert any(f"{target}.".startswith(f"kvbench.extras.{folder.name}.") for target in targets)
    conf = [
        file for file in (ROOT / "conf").rglob("*.yaml") if f"kvbench.extras.{folder.name}" in file.read_text("utf-8")
    ]
    assert conf == []
