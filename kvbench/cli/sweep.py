"""The sweep that a command line asks for: parsed, composed, checked and planned; nothing is run or written."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from kvbench.cli.compose import combinations
from kvbench.cli.overrides import Asked, parse
from kvbench.cli.settings import Results, cell, results
from kvbench.plan import Cell, Plan, plan
from kvbench.records import KeptDetail, ResultsFolder, Row, check_writable, done, read_rows

RETRY = "--retry-errors"
"""The flag that makes rows again which have an error: once the machine has more memory, say."""


@dataclass(frozen=True)
class Sweep:
    """A plan, the folder its rows are in, the rows that are there already, and what is written beside new ones."""

    plan: Plan
    results: ResultsFolder
    rows: list[Row]
    kept: KeptDetail

    def holds(self, row: Row) -> bool:
        """Whether a row of the folder belongs to this sweep."""
        return row.sample < self._samples.get(row.cell, 0)

    @cached_property
    def _samples(self) -> dict[str, int]:
        return {cell.id: cell.task.samples for cell in self.plan.cells}


def sweep(arguments: Sequence[str], retry_errors: bool = False) -> Sweep:
    """Plan what `arguments` ask for; rows with errors count as missing when they are retried.

    Raises ValueError for bad input and for a folder that cannot be written.
    """
    asked = parse(arguments)
    where, cells = checked(asked)
    _notice(cells, asked)
    rows = read_rows(where.dir, warn=lambda text: print(f"kvbench: warning: {text}", file=sys.stderr))
    return Sweep(plan(cells, done(rows, retry_errors)), ResultsFolder(where.dir), rows, where.kept)


def checked(asked: Sequence[Asked], everywhere: bool = False) -> tuple[Results, list[Cell]]:
    """Where rows go and the cells of a command line, built and found legal; `everywhere` as in `combinations`.

    Raises ValueError for the first that is not.
    """
    configs = combinations(asked, everywhere)
    cells = [cell(config) for config in configs]
    places = dict.fromkeys(results(config) for config in configs)
    folders = dict.fromkeys(one.dir for one in places)
    if len(folders) != 1:
        raise ValueError(f"results.dir lists {len(folders)} folders: {', '.join(sorted(folders))}; a sweep has one")
    if len(places) != 1:
        details = ", ".join(one.kept for one in places)
        raise ValueError(f"results.kept lists {len(places)} values: {details}; a sweep has one")
    (where,) = places
    check_writable(where.dir)
    for one in cells:
        one.check()
    return where, cells


def _notice(cells: Sequence[Cell], asked: Sequence[Asked]) -> None:
    """Say which policies ignore what they were crossed with."""
    named = {one.key for one in asked}
    for policy in {one.policy.name: one.policy for one in cells}.values():
        ignored = [what for what in ("score", "budget") if what in named and what not in policy.takes]
        if ignored:
            many = "one cell whatever the" if len(ignored) == 2 else "the same cell for every"
            print(
                f"kvbench: {policy.name} takes no {' and no '.join(ignored)}: {many} {' and '.join(ignored)}",
                file=sys.stderr,
            )
