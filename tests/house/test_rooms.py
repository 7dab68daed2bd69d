"""docs/architecture.md against the code: the rooms are as imported, and what the walk names is there."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from scripts.draw_rooms import FLOORS, PAGE, PICTURE, PLACES, imports, reduced, written

ROOT = Path(__file__).parents[2]
NAMED = sorted(set(re.findall(r"(kvbench/[\w/]+\.py): (\w+(?:\.\w+)?)", PAGE.read_text("utf-8"))))


@cache
def defined(file: str) -> set[str]:
    """Functions and classes of a file, and what is defined in the classes."""
    found = set()
    for node in ast.parse((ROOT / file).read_text("utf-8")).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{one.name}" for one in node.body if isinstance(one, ast.FunctionDef)}
    return found


def test_the_walk_names_what_is_there() -> None:
    assert len(NAMED) > 40
    assert [f"{file}: {name}" for file, name in NAMED if name not in defined(file)] == []


def test_the_rooms_are_those_of_the_code_and_nobody_goes_upstairs() -> None:
    edges, _ = imports()
    page = PAGE.read_text("utf-8")
    assert written(page, edges) == page, "stale: run python scripts/draw_rooms.py"
    assert PLACES.keys() == FLOORS.keys() and PICTURE.is_file()
    assert all(PLACES[above][2] < PLACES[below][2] for above, below in edges)
    assert set(reduced(edges)) < edges


def test_a_room_without_a_floor_is_left_out_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FLOORS, "data", ())  # type: ignore[arg-type]
    edges, new = imports()
    assert "data" in new and not any("data" in edge for edge in edges)
