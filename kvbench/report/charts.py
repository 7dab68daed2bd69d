"""Cells as charts of many runs show them: a name that stays the same from commit to commit, and three numbers."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from kvbench.records.rows import Describe
from kvbench.report.experiments import CODE, Experiments
from kvbench.report.tables.summary import Summary

QUANTITIES = ("accuracy", "bytes", "seconds")


def names_of(runs: Sequence[Collection[Summary]], describe: Describe) -> dict[str, str]:
    """Return the name of each cell in a chart: the same from commit to commit, while its hash may change with the code.

    runs: the cells of each commit. A name ends with the settings that tell its cell from others; the code is named only
    where one run has cells of several.
    """
    names = {cell.cell: _named(cell) for cells in runs for cell in cells}
    for axes in ((CODE,), ()):
        words = Experiments(axes, describe).told_apart(names)
        differing = names if axes else _alike(runs, names)
        names |= {cell: f"{names[cell]} {words[cell]}" for cell in differing if words[cell]}
    return names | {cell: f"{names[cell]} {cell}" for cell in _alike(runs, names)}


def _alike(runs: Sequence[Collection[Summary]], names: Mapping[str, str]) -> set[str]:
    """Cells with the name of another one of their run."""
    charts = [{cell.cell for cell in cells} for cells in runs]
    counts = [Counter(names[cell] for cell in cells) for cells in charts]
    return {cell for cells, count in zip(charts, counts, strict=True) for cell in cells if count[names[cell]] > 1}


def _named(cell: Summary) -> str:
    question = (cell.model, cell.task, cell.context_length)
    method = (cell.policy, cell.score, cell.budget, cell.layout, cell.schedule)
    return " ".join(str(part) for part in (*question, *method) if part not in (None, "kv_heads", "prompt"))


def measured(cell: Summary, quantity: str) -> tuple[float | None, str, str]:
    """Return the number of a cell, its unit and its interval.

    Seconds are of evicting one prompt; of a task that measures time, of one decoding step. Elsewhere cells share
    their steps, so that a cell has no decoding time of its own.
    """
    if quantity == "bytes":
        return cell.held_bytes, "bytes", ""
    if quantity == "seconds":
        is_timed = cell.metric == "seconds_per_token"
        return (cell.mean, "seconds per token", "") if is_timed else (cell.evict_seconds, "seconds per eviction", "")
    scale = 100 if cell.rate else 1
    span = "" if cell.low is None or cell.high is None else f"{scale * cell.low:.4g}..{scale * cell.high:.4g}"
    value = None if cell.mean is None else scale * cell.mean
    return value, f"{cell.metric or 'value'}{' %' if cell.rate else ''}", span
