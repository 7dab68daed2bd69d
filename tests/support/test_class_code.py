"""The code of a class that was typed: another body is another code, another place is not."""

import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest

from kvbench.support.class_code import class_sha256
from kvbench.support.plugins import foreign

CLASS = """
class Mine:
    kinds = ("a", "b")

    @property
    def width(self):
        return {width}

    def __call__(self, layer):
        return [number * {factor} for number in layer if number in {{"x", "y", "z"}}]
"""


def typed(lines: int = 0, **values: int) -> type:
    """The class as a cell of a notebook with so many blank lines before it defines it."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec("\n" * lines + CLASS.format(**{"width": 1, "factor": 2} | values), names)
    return names["Mine"]


def test_the_code_of_a_class_is_its_functions() -> None:
    assert class_sha256(typed()) == class_sha256(typed(lines=7))
    codes = {class_sha256(kind) for kind in (typed(), typed(width=3), typed(factor=3))}
    assert len(codes) == 3


def test_what_a_class_inherits_counts() -> None:
    base, other = typed(), typed(factor=5)
    assert class_sha256(type("Mine", (base,), {})) != class_sha256(type("Mine", (other,), {}))


@pytest.mark.parametrize("file", [None, "<stdin>"])
def test_a_class_without_a_file_is_named_by_its_code(monkeypatch: pytest.MonkeyPatch, file: str | None) -> None:
    """A notebook's module has no file, and what is piped into an interpreter one that is none."""
    module = ModuleType("typed_in")
    module.__file__ = file
    monkeypatch.setitem(sys.modules, "typed_in", module)

    def code(factor: int) -> dict[str, dict[str, str]]:
        kind = dataclass(typed(factor=factor))
        kind.__module__ = "typed_in"
        return foreign(kind())

    assert code(2) == code(2) != code(3) and code(2)["Mine"]["plugin"] == ""
