"""The command that a first run leads to: other budgets where the measured one tells nothing, else other methods."""

import shlex
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from kvbench.config.overrides import parse
from kvbench.report.tables.summary import NEEDED, NUMBER, SCORE, Summary, budget_key, summaries
from kvbench.support.quantity import parse_size

if TYPE_CHECKING:
    from kvbench.work.planned import Sweep

FRACTIONS = (0.05, 0.1, 0.2, 0.4, 0.6, 0.8)
"""Budgets to try, of the budgets that keep a part of the prompt."""
MORE = 3
"""How many of them beside the measured ones."""
ENOUGH = 3
"""Samples of a cell: fewer may all be right, or all wrong, by chance."""
METHODS = ("streaming_llm", "h2o", "snapkv")
"""Methods to hold a single one against: by position, by accumulated attention, by the attention of a window."""


def next_command(sweep: "Sweep", rows: Callable[[Sequence[str]], pa.Table]) -> str | None:
    """Return why, and the command; None if the sweep's `rows` hold no value of a method that evicts."""
    every = summaries(rows(NEEDED))
    cells = [cell for cell in every if cell.mean is not None]
    methods = [cell for cell in cells if cell.policy.partition(" ")[0] != "full"]  # with a reader it takes no budget
    if not methods:
        return None
    if any(cell.rate and cell.mean == 0 for cell in cells if cell.policy == "full"):
        return "the full cache is at the floor; try another task or model: kvbench list tasks, kvbench list models"
    page = f"kvbench report html --results {shlex.quote(str(sweep.results.path))} --out page.html"
    if not any(cell.model.runs_here for cell in sweep.plan.cells):  # whose method and budget a command does not choose
        return f"all of it as an interactive page: {page}"
    tried = sum(cell.policy.partition(" ")[0] != "full" for cell in every)
    tells = 2 * sum(cell.n >= ENOUGH and cell.n > cell.errors for cell in methods) > tried
    for name, end, size in (("floor", 0, "larger"), ("ceiling", 1, "smaller")):
        at_end = tells and all(cell.rate and cell.mean == end for cell in methods)
        if at_end and (values := _budgets(methods, end == 0)):
            all_cells = "all cells are" if len(methods) == tried else "all cells with a value are"
            where = f"{'the only cell is' if tried == 1 else all_cells} at the {name}"
            return f"{where}; try {size} budgets: {_with(sweep, 'budget', values)}"
    policies = list(dict.fromkeys(cell.policy.partition(" ")[0] for cell in methods))
    if len(policies) == 1:
        others = [name for name in METHODS if name not in policies]
        return f"compare it with other methods: {_with(sweep, 'policy', [*policies, *others])}"
    return f"all of it as an interactive page: {page}"


def _budgets(cells: Sequence[Summary], larger: bool) -> list[str]:
    """Return budgets of these cells and the next larger or smaller ones, in order; empty if there are none to try."""
    measured = sorted({cell.budget for cell in cells}, key=budget_key)
    if any(parse_size(budget) is not None for budget in measured):
        return []
    kind, edge, _ = budget_key(measured[-1 if larger else 0])
    if kind == SCORE:  # what scores mean is up to the score
        return []
    if kind == NUMBER:
        others = [f"{edge * 2**step:.0f}" for step in range(1, MORE + 1)] if larger else []
    else:
        others = [str(part) for part in FRACTIONS if (part > edge if larger else part < edge)]
        others = others[:MORE] if larger else others[-MORE:]
    return sorted({*measured, *others}, key=budget_key) if others else []


def _with(sweep: "Sweep", key: str, values: Sequence[str]) -> str:
    """Return the command of the sweep with these values of a setting."""
    words = [word for word in sweep.arguments if parse([word])[0].key != key]
    return shlex.join(["kvbench", "run", *words, f"{key}={','.join(values)}"])
