"""docs/develop.md against the code: packages import as it says, and what its walks name is there."""

import ast
import re
from functools import cache
from pathlib import Path

from scripts.draw_rooms import PAGE, PICTURE, holds, imports, layers, with_table

ROOT = Path(__file__).parents[2]
NAMED = sorted(set(re.findall(r"(kvbench/[\w/]+\.py): (\w+(?:\.\w+)?)", PAGE.read_text("utf-8"))))


@cache
def defined(file: str) -> set[str]:
    """Functions and classes of a file, and what is defined in the classes."""
    names = set()
    for node in ast.parse((ROOT / file).read_text("utf-8")).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{method.name}" for method in node.body if isinstance(method, ast.FunctionDef)}
    return names


def test_the_walks_name_what_is_there() -> None:
    assert len(NAMED) > 30
    assert [f"{file}: {name}" for file, name in NAMED if name not in defined(file)] == []


def walk(title: str) -> set[str]:
    """The files that a walk names."""
    (section,) = (part for part in PAGE.read_text("utf-8").split("\n## ") if part.startswith(title))
    return set(re.findall(r"kvbench/[\w/]+\.py", section))


def test_the_walk_of_a_sample_is_short() -> None:
    assert 10 < len(walk("The walk of one sample")) <= 25
    assert walk("The walk of one paper item") and walk("The walk of one regression gate")


def test_the_table_is_that_of_the_code_and_imports_go_down() -> None:
    imported, page = imports(), PAGE.read_text("utf-8")
    assert with_table(page, imported) == page, "stale: run python scripts/draw_rooms.py"
    depth = {package: number for number, layer in enumerate(layers()) for package in layer}
    assert depth.keys() == imported.keys() and PICTURE.is_file()
    assert [(a, b) for a, names in imported.items() for b in names if depth[a] >= depth[b]] == []
    assert all(holds(package) for package in imported)
