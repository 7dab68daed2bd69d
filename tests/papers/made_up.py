"""Cells with made-up means, at places of a layout."""

from dataclasses import fields
from types import SimpleNamespace
from typing import Any

from kvbench.papers.numbers import Placed
from kvbench.report.tables.summary import Summary

UNIT = {"task": "", "model": "", "policy": "", "budget": "", "cell": "", "errors": 0, "blanks": 0, "rate": True}


def summary(mean, n):
    blank: dict[str, Any] = {field.name: None for field in fields(Summary)}
    return Summary(**(blank | UNIT | {"mean": mean, "n": n}))


def placed(at, task, mean, n=1, samples=1, differs=()):
    """A cell that stands where a layout has it, of which only the task matters."""
    cell: Any = SimpleNamespace(
        task=SimpleNamespace(name=task, num_answers=samples), policy=SimpleNamespace(accepts=("budget",))
    )
    return Placed(cell, at, differs, summary(mean, n))
