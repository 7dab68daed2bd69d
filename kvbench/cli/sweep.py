"""The sweep that a command line asks for: parsed, composed, checked and planned; nothing is run or written."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from kvbench.cli.compose import combinations
from kvbench.cli.overrides import Asked, parse
from kvbench.cli.settings import cell, results_dir
from kvbench.plan import Cell, Plan, plan
from kvbench.records import ResultsFolder, Row, check_writable, done, read_rows


@dataclass(frozen=True)
class Sweep:
    """A plan, the folder its rows are in, and the rows that are there already."""

    plan: Plan
    results: ResultsFolder
    rows: list[Row]

    def holds(self, row: Row) -> bool:
        """Whether a row of the folder belongs to this sweep."""
        return row.sample < self._samples.get(row.cell, 0)

    @cached_property
    def _samples(self) -> dict[str, int]:
        return {cell.id: cell.task.samples for cell in self.plan.cells}


def sweep(arguments: Sequence[str]) -> Sweep:
    """Plan what `arguments` ask for. Raises ValueError for bad input and for a folder that cannot be written."""
    asked = parse(arguments)
    folder, cells = checked(asked)
    _notice(cells, asked)
    rows = read_rows(folder, warn=lambda text: print(f"kvbench: warning: {text}", file=sys.stderr))
    return Sweep(plan(cells, done(rows)), ResultsFolder(folder), rows)


def checked(asked: Sequence[Asked], everywhere: bool = False) -> tuple[Path, list[Cell]]:
    """The results folder and the cells of a command line, built and found legal; `everywhere` as in `combinations`.

    Raises ValueError for the first that is not.
    """
    configs = combinations(asked, everywhere)
    cells = [cell(config) for config in configs]
    folders = {results_dir(config) for config in configs}
    if len(folders) != 1:
        raise ValueError(f"results.dir lists {len(folders)} folders: {', '.join(sorted(folders))}; a sweep has one")
    folder = Path(folders.pop())
    check_writable(folder)
    for one in cells:
        one.check()
    return folder, cells


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
