"""What a command line asks for: its cells, built and checked, where their rows go, its launcher and its logger."""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any

from kvbench.config.cells import Cells, refuse_eviction
from kvbench.config.compose import combinations, resolved
from kvbench.config.entries import Tree
from kvbench.config.overrides import Override
from kvbench.config.settings import build
from kvbench.config.validation import validated
from kvbench.records import check_writable
from kvbench.run.data_files import check_data, check_unaltered
from kvbench.run.plan import Cell
from kvbench.run.settings import Reference, Results
from kvbench.support.errors import UserError
from kvbench.support.grouped import grouped

Tell = Callable[[str], None]
"""Tells the user something in a line."""
ONCE_PER_SWEEP = ("launcher", "logger")
"""Groups that say what happens around the work, and nothing about it."""


def checked(overrides: Sequence[Override], tell: Tell) -> tuple[Results, list[Cell]]:
    """Return where rows go and the cells of a command line, built and checked.

    What a pattern of policies or scores matches and cannot be run is left out and reported. Raises UserError for the
    first cell that is not allowed, or where none is left; MissingFile where a task lacks its data.
    """
    trees, builder = combinations(overrides), Cells()
    refuse_eviction(overrides, trees)
    cells: list[Cell] = []
    allowed: list[Tree] = []
    refused: dict[tuple[str, str], dict[str, None]] = {}
    for tree in trees:
        try:
            cell = builder.cell(tree)
            cell.check()
        except ValueError as error:
            if not _matched(tree, overrides) or (tree is trees[-1] and not cells):
                raise
            refused.setdefault((str(error), tree["score"]["name"]), {})[tree["policy"]["name"]] = None
        else:
            cells.append(cell)
            allowed.append(tree)
    where = results_of((builder.results(tree) for tree in allowed or trees), "a sweep")
    check_data(cells)
    check_unaltered(cells, verifies(overrides), tell)
    check_writable(where.dir)
    for (error, score), policies in refused.items():
        tell(f"left out score {score} on {', '.join(policies)}: {error}")
    return where, cells


def cells_of(overrides: Sequence[Override], unused: set[str]) -> tuple[Results, list[Cell]]:
    """Return where rows go and the distinct cells of a command line, models and tasks varying slowest; none is left
    out.

    Settings that no combination has are added to `unused`. Raises UserError for the first cell that is not allowed.
    """
    trees, builder = combinations(overrides, unused=unused), Cells()
    cells = list({repr(cell): cell for cell in map(builder.cell, trees)}.values())
    cells = [*chain(*grouped(cells, lambda cell: (repr(cell.model), repr(cell.task), cell.seed)).values())]
    for cell in cells:
        cell.check()
    return results_of(map(builder.results, trees), "an item"), cells


def results_of(trees: Iterable[Results], scope: str) -> Results:
    """Return the results settings that all trees of a command have. Raises UserError where they differ."""
    distinct = list(dict.fromkeys(trees))
    for name, noun in (("dir", "folders"), ("kept", "values"), ("lease_seconds", "values")):
        values = list(dict.fromkeys(str(getattr(results, name)) for results in distinct))
        if len(values) != 1:
            raise UserError(f"results.{name} lists {len(values)} {noun}: {', '.join(values)}; {scope} has one")
    return distinct[0]


def refuse_around(overrides: Iterable[Override], command: str) -> None:
    """Raise UserError for a launcher or logger of a command that works in its own process alone."""
    for override in overrides:
        if override.root in ONCE_PER_SWEEP:
            raise UserError(f"{override.text}: {command} runs in this process only: leave {override.root} out")


def reference_of(overrides: Sequence[Override]) -> Reference:
    """Return the cells that a command compares with. Raises UserError for a list."""
    return _single([override for override in overrides if override.key == "reference"], "reference")["reference"]


def verifies(overrides: Sequence[Override]) -> bool:
    """Return whether a command refuses data files that differ from the lock. Raises UserError for a list."""
    tree = _single([override for override in overrides if override.key == "data.verify"], "data.verify")
    return validated(bool, "data.verify", tree["data"]["verify"])


def around(group: str, overrides: Sequence[Override]) -> Any:
    """Build a group of `ONCE_PER_SWEEP`: one object for the whole sweep. Raises UserError for lists."""
    tree = _single([override for override in overrides if override.root == group], group)
    return build(group, resolved({group: tree[group]})[group])


def _single(settings: Sequence[Override], name: str) -> Tree:
    """Return the tree of settings that a sweep has once, called `name`. Raises UserError for a list."""
    for override in settings:
        if len(override.values) > 1:
            raise UserError(f"{override.text} lists {len(override.values)} values: a sweep has one {name}; name one")
    (tree,) = combinations(settings)
    return tree


def _matched(tree: Tree, overrides: Sequence[Override]) -> bool:
    """Return whether a pattern rather than a name brought a policy or score into a combination."""
    return any(
        override.key in ("policy", "score")
        and tree[override.key]["name"] not in {value.text for value in override.values}
        and tree[override.key]["_target_"] not in {value.text for value in override.values}
        and (override.key == "policy" or "score" in tree["policy"]["accepts"])
        for override in overrides
    )
