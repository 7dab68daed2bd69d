"""A task says what it is by data on its class: nothing outside of the tasks asks for a class, or who answers a cell."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from pkgutil import resolve_name

import pytest

from kvbench.run.procedure import Backend, Procedure
from tests.repository import code, parsed

PACKAGE = Path(__file__).parents[2] / "kvbench"
NAMED = re.compile(r"kvbench\.[\w.]+:\w+")

Trees = dict[str, ast.AST]


@pytest.fixture(scope="module")
def trees() -> Trees:
    """The syntax trees of the files."""
    return {file.relative_to(PACKAGE).as_posix(): parsed(file) for file in code()}


@pytest.fixture(scope="module")
def outside(trees: Trees) -> Trees:
    """Those outside of the tasks."""
    return {name: tree for name, tree in trees.items() if not name.startswith("tasks/")}


def names_in(node: ast.AST) -> set[str]:
    """All names and attributes of an expression."""
    names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    return names | {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}


def task_classes(trees: Trees) -> set[str]:
    """The classes of `kvbench.tasks` and of extras that are tasks, and what those of files have in common."""
    tasks = [tree for name, tree in trees.items() if name.startswith(("tasks/", "extras/"))]
    classes = [node for tree in tasks for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    bases = [(node.name, set().union(*map(names_in, node.bases))) for node in classes]
    found, number = {"Task", "TaskSettings", "FromFiles"}, 0
    while number < len(found):
        number = len(found)
        found |= {name for name, of in bases if found & of}
    return found


def asked_for(tree: ast.AST) -> Iterator[str]:
    """The classes that a file asks for by `isinstance` or `issubclass`."""
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        if len(call.args) == 2 and names_in(call.func) & {"isinstance", "issubclass"}:
            yield from names_in(call.args[1])


def test_no_class_of_tasks_is_asked_for(trees: Trees, outside: Trees) -> None:
    classes = task_classes(trees)
    assert classes > {"Likelihood", "Efficiency", "PG19", "SharedContext", "LongBenchTask", "RulerTask"}
    assert {(name, asked) for name, tree in outside.items() for asked in asked_for(tree) if asked in classes} == set()


def test_no_cell_says_that_a_server_answers_it(outside: Trees) -> None:
    assert {name for name in outside if "is_served" in (PACKAGE / name).read_text("utf-8")} == set()


def test_every_procedure_and_backend_that_is_named_is_one(trees: Trees) -> None:
    texts = (node.value for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.Constant))
    found = {text: resolve_name(text) for text in texts if isinstance(text, str) and NAMED.fullmatch(text)}
    for kind, names in (
        (Procedure, ("Answers", "Conversations", "Perplexity", "Timings")),
        (Backend, ("IndexedLocal", "Local", "Servers")),
    ):
        needed = {name for name in vars(kind) if not name.startswith("_")}
        assert {each.__name__ for each in found.values() if needed <= set(dir(each))} == set(names)
