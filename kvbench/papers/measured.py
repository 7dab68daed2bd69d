"""Our cells in a paper's layout: the mean of whatever a place of the layout is the mean of, with its interval."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from kvbench.papers.item import Item
from kvbench.papers.pairs import counted
from kvbench.report.stats.intervals import NORMAL_QUANTILE
from kvbench.report.tables.summary import Summary
from kvbench.tasks.longbench.averages import weights


@dataclass(frozen=True)
class Placed:
    """One cell of ours: the values of the layout's keys, its task, what was asked of it and what was measured.
    Cells with the same `prompts` read the same texts.

    summary is None where it has no row yet. differs: how its settings differ from the item's own, in words.
    """

    at: tuple[str, ...]
    task: str
    prompts: str
    model: str
    samples: int
    reference: bool
    summary: Summary | None
    differs: tuple[str, ...]


@dataclass(frozen=True)
class Measured:
    """A mean over `n` samples of `cells` cells, in the metric's own unit; missing cells or failed samples are told.

    mean is None where a cell of it is missing; low and high are None without an interval.
    """

    n: int
    cells: int
    missing: int
    failed: int
    mean: float | None
    low: float | None
    high: float | None
    rate: bool
    differs: tuple[str, ...]


def measured(cells: Sequence[Placed], weight: Mapping[str, float] | None = None) -> Measured:
    """The mean of cells, each counting the same or what `weight` says of its task.

    The interval of a single cell is its own; of several that of a weighted sum of independent means, m +- 1.96
    sqrt(sum w^2 s^2 / n), cut to 0..1 for rates: there is none where some read the same prompts, and none where no
    sample differs from another.
    """
    found = [cell.summary for cell in cells if cell.summary is not None and cell.summary.mean is not None]
    failed = sum(one.summary.errors + one.summary.blanks for one in cells if one.summary is not None)
    short = sum(one.samples - one.summary.n for one in cells if one.summary is not None)
    differs = tuple(dict.fromkeys(text for cell in cells for text in cell.differs))
    n, missing = sum(one.n for one in found), len(cells) - len(found)
    rate = all(one.rate for one in found)
    mean = low = high = None
    if found and not missing:
        shares = [weight[_member(cell)] if weight else 1 / len(cells) for cell in cells]
        mean = math.fsum(share * one.mean for share, one in zip(shares, found, strict=True) if one.mean is not None)
        low, high = _interval(mean, shares, found, rate)
        if len(cells) > 1 and (low == high or len({cell.prompts for cell in cells}) < len(cells)):
            low = high = None
    return Measured(n, len(cells), missing, max(failed, short), mean, low, high, rate, differs)


def _interval(
    mean: float, shares: Sequence[float], found: Sequence[Summary], rate: bool
) -> tuple[float | None, float | None]:
    if len(found) == 1:
        return found[0].low, found[0].high
    variances = [one.variance for one in found]
    if any(variance is None for variance in variances):
        return None, None
    parts = [
        share**2 * (variance or 0.0) / one.n for share, variance, one in zip(shares, variances, found, strict=True)
    ]
    half = NORMAL_QUANTILE * math.sqrt(math.fsum(parts))
    return (max(0.0, mean - half), min(1.0, mean + half)) if rate else (mean - half, mean + half)


def _member(cell: Placed) -> str:
    return cell.task.partition("/")[2]


def places(item: Item, cells: Sequence[Placed], partly: bool = False) -> dict[tuple[str, ...], Measured]:
    """What was measured at each place of the layout. With `against: full` the full cache's mean is taken off. `partly`:
    an average may lack tasks, as in a smoke run without their data.
    """
    if item.layout.wins:
        return _wins(item, cells)
    name = item.layout.average
    weight = weights(name) if name is not None and not item.has_average else None
    grouped: dict[tuple[str, ...], list[Placed]] = {}
    for cell in cells:
        if weight is None or _member(cell) in weight:
            grouped.setdefault(cell.at, []).append(cell)
    found = {
        at: measured(members, _of(weight, members))
        for at, members in grouped.items()
        if weight is None or partly or {_member(cell) for cell in members} == set(weight)
    }
    return _against_full(item, grouped, found) if item.layout.against == "full" else found


def _wins(item: Item, cells: Sequence[Placed]) -> dict[tuple[str, ...], Measured]:
    """On how many tasks each of a pair of policies has the higher mean, of those that both have; n counts them."""
    by_task: dict[str, dict[tuple[str, ...], float]] = {}
    for cell in cells:
        if cell.summary is not None and cell.summary.mean is not None:
            by_task.setdefault(cell.task, {})[cell.at] = cell.summary.mean
    differs = tuple(dict.fromkeys(text for cell in cells for text in cell.differs))
    short = {cell.at: 0 for cell in cells}
    for cell in cells:
        short[cell.at] += cell.summary is None or cell.summary.n < cell.samples
    return {
        at: Measured(tasks, tasks, 0, short[at], wins, None, None, False, differs)
        for at, (wins, tasks) in counted(item, by_task).items()
    }


def averages(item: Item, cells: Sequence[Placed], partly: bool = False) -> dict[tuple[str, ...], Measured]:
    """The average of each line of the layout, by the values of its row keys; lines without all its tasks have none,
    unless `partly`.
    """
    name = item.layout.average
    if name is None or not item.has_average:
        return {}
    weight = None if name == "plain" else weights(name)
    lines: dict[tuple[str, ...], list[Placed]] = {}
    for cell in cells:
        if weight is None or _member(cell) in weight:
            lines.setdefault(cell.at[: len(item.layout.rows)], []).append(cell)
    found = {}
    for line, members in lines.items():
        tasks = {_member(cell) for cell in members}
        if weight is None or ((partly or tasks == set(weight)) and len(members) == len(tasks)):
            found[line] = measured(members, _of(weight, members))
    return found


def _of(weight: Mapping[str, float] | None, members: Sequence[Placed]) -> dict[str, float] | None:
    """Weights of the tasks that are there."""
    if weight is None:
        return None
    there = {name: weight[name] for name in map(_member, members)}
    return {name: share / math.fsum(there.values()) for name, share in there.items()}


def _against_full(
    item: Item, grouped: Mapping[tuple[str, ...], Sequence[Placed]], found: Mapping[tuple[str, ...], Measured]
) -> dict[tuple[str, ...], Measured]:
    """Without an interval: both means are over the same texts, so that their intervals do not add up."""
    model = item.keys.index("model") if "model" in item.keys else None
    full: dict[str | None, list[float]] = {}
    for at, members in grouped.items():
        mean = found[at].mean
        if members[0].reference and mean is not None:
            full.setdefault(None if model is None else at[model], []).append(mean)
    less = {}
    for at, members in grouped.items():
        one, whole = found[at], full.get(None if model is None else at[model])
        if members[0].reference or one.mean is None:
            less[at] = one
        else:
            mean = one.mean - fmean(whole) if whole else None
            less[at] = Measured(one.n, one.cells, one.missing, one.failed, mean, None, None, False, one.differs)
    return less
