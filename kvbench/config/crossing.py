"""Cells of many tasks and many methods, composed apart and crossed: a table of a paper has hundreds.

Hydra takes a good part of a second a composition. What a task says and what a policy with its score says are
independent as long as no file of one speaks about the other, which is checked; where one does, every combination is
composed.
"""

from collections.abc import Sequence
from dataclasses import replace

from kvbench.config.cells import Cells
from kvbench.config.compose import Tree, combinations, with_members
from kvbench.config.overrides import Asked
from kvbench.config.settings import Results
from kvbench.run.plan import Cell
from kvbench.support.errors import UserError

READING = ("model", "task")
METHOD = ("policy", "score")


def crossed(asked: Sequence[Asked], unused: set[str]) -> tuple[Results, list[Cell]]:
    """Where rows go and the cells of a command line, tasks varying slowest, each found legal.

    Settings that no combination has are added to `unused`. Raises ValueError for what is not legal.
    """
    asked = with_members(asked)
    here, there = [_first(one, METHOD) for one in asked], [_first(one, READING) for one in asked]
    none, neither = set[str](), set[str]()
    readings, methods = combinations(here, unused=none), combinations(there, unused=neither)
    built = Cells()
    seeds = any(one.key == "seed" and len(one.values) > 1 for one in asked)  # scores may draw by it too
    if seeds or not _independent(readings, methods):
        trees = combinations(asked, unused=unused)
        cells = [built.cell(tree) for tree in trees]
    else:
        trees = methods
        unused |= none & neither
        judged = [built.cell(tree) for tree in methods]
        read = [built.cell(tree) for tree in readings]
        cells = [replace(one, model=other.model, task=other.task, seed=other.seed) for other in read for one in judged]
    cells = list({repr(one): one for one in cells}.values())  # values of a setting that no file has are no new cells
    for one in cells:
        one.check()
    found = list(dict.fromkeys(built.results(tree) for tree in trees))
    if len(found) != 1:
        raise UserError(f"results.dir lists several folders: {', '.join(one.dir for one in found)}; an item has one")
    return found[0], cells


def _first(one: Asked, groups: Sequence[str]) -> Asked:
    """A setting of the other side with the first of its values."""
    part = one.key.partition(".")[0]
    reading = part in (*READING, "seed", "data")
    return one if one.is_hydra or reading != (groups is READING) else replace(one, values=one.values[:1])


def _independent(readings: Sequence[Tree], methods: Sequence[Tree]) -> bool:
    """Whether no task changes what a method says, and no method what a task says."""
    base = readings[0]
    return (
        base == methods[0]
        and all(_without(tree) == _without(base) for tree in readings)
        and all(tree[group] == base[group] for tree in methods for group in READING)
    )


def _without(tree: Tree) -> Tree:
    return {key: value for key, value in tree.items() if key not in (*READING, "seed", "data")}
