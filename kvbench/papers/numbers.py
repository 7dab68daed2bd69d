"""Our numbers of an item by their place in its layout: means of cells with intervals, and what is computed of them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from kvbench.papers.item import At, Item
from kvbench.report.stats.intervals import weighted_interval
from kvbench.report.tables.summary import Summary
from kvbench.run.cell import Cell
from kvbench.support.grouped import grouped
from kvbench.tasks.longbench_averages import weights


@dataclass(frozen=True)
class Placed:
    """One cell at its place. differs: how its settings differ from the item's, in words. summary: of its rows."""

    cell: Cell
    at: At
    differs: tuple[str, ...] = ()
    summary: Summary | None = None

    @property
    def member(self) -> str:
        """The task without the name of its benchmark."""
        return self.cell.task.name.partition("/")[2]

    @property
    def prompts(self) -> str:
        """The name of what it reads: cells with the same prompts read the same texts."""
        return repr(self.cell.task)

    @property
    def lacks(self) -> int:
        """How many of its samples have no number."""
        return self.cell.task.num_answers - (self.summary.n if self.summary else 0)


@dataclass(frozen=True)
class Measured:
    """A mean over `n` samples of `cells` cells, in the metric's own unit, with its missing cells and failed samples.

    mean is None if one of the cells is missing; low and high are None without an interval.
    """

    mean: float | None
    n: int = 0
    cells: int = 1
    missing: int = 0
    failed: int = 0
    low: float | None = None
    high: float | None = None
    rate: bool = False
    differs: tuple[str, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether there is a mean, and no sample of it is missing."""
        return self.mean is not None and not self.missing and not self.failed


def places(item: Item, cells: Sequence[Placed], smoke: bool = False) -> dict[At, Measured]:
    """Return what was measured at each place of a layout, as `Layout` says.

    smoke: an average is over whatever tasks there are.
    """
    layout = item.layout
    numbers = _means(cells, len(item.keys), None if item.has_average else layout.average, smoke)
    return _against_full(item, cells, numbers) if layout.against == "full" else numbers


def averages(item: Item, cells: Sequence[Placed], smoke: bool = False) -> dict[At, Measured]:
    """Return the average of each line of the layout.

    A line that lacks tasks has none, unless in a `smoke` run.
    """
    if not item.has_average:
        return {}
    means = _means(cells, len(item.layout.rows), item.layout.average, smoke)
    return {item.average(line): mean for line, mean in means.items()}


def numbers_of(item: Item, cells: Sequence[Placed], smoke: bool = False) -> dict[At, Measured]:
    """Return what was measured at each place of a layout, and the average of each line."""
    return {**places(item, cells, smoke), **averages(item, cells, smoke)}


def _means(cells: Sequence[Placed], keys: int, average: str | None, smoke: bool) -> dict[At, Measured]:
    """Return the mean of the cells that share their first `keys` values; an average where it has all of its tasks."""
    weight = None if average in (None, "plain") else weights(average)
    if smoke and weight and not any(cell.member in weight for cell in cells):
        weight = None  # the prompts of a smoke run are of another benchmark
    members = [cell for cell in cells if weight is None or cell.member in weight]
    return {
        at: measured(same, weight)
        for at, same in grouped(members, lambda cell: cell.at[:keys]).items()
        if weight is None or smoke or {cell.member for cell in same} == set(weight)
    }


def measured(cells: Sequence[Placed], weight: Mapping[str, float] | None = None) -> Measured:
    """Return the mean of cells, weighted equally or by the weights of their tasks.

    The interval of a single cell is its own; of several the interval of a weighted sum of independent means. There is
    none if some cells read the same prompts, and none if no sample differs from another.
    """
    summaries = [cell.summary for cell in cells if cell.summary is not None]
    failed = sum(summary.errors + summary.blanks for summary in summaries)
    short = sum(cell.lacks for cell in cells if cell.summary is not None)
    summaries = [summary for summary in summaries if summary.mean is not None]
    missing, rate = len(cells) - len(summaries), all(summary.rate for summary in summaries)
    mean = low = high = None
    if summaries and not missing:
        total = math.fsum({cell.member: weight[cell.member] for cell in cells}.values()) if weight else len(cells)
        shares = [(weight[cell.member] if weight else 1) / total for cell in cells]
        means = zip(shares, summaries, strict=True)
        mean = math.fsum(share * summary.mean for share, summary in means if summary.mean is not None)
        if len(cells) == 1:
            low, high = summaries[0].low, summaries[0].high
        elif len({cell.prompts for cell in cells}) == len(cells):
            parts = [(share, summary.variance, summary.n) for share, summary in zip(shares, summaries, strict=True)]
            low, high = weighted_interval(mean, parts, rate)
            low, high = (None, None) if low == high else (low, high)
    n = sum(summary.n for summary in summaries)
    return Measured(mean, n, len(cells), missing, max(failed, short), low, high, rate, differences(cells))


def with_value(at: At, key: int, value: str) -> At:
    """Return a place with another value of the key of this number."""
    return (*at[:key], value, *at[key + 1 :])


def _against_full(item: Item, cells: Sequence[Placed], numbers: Mapping[At, Measured]) -> dict[At, Measured]:
    """Differences to the full cache of the same model, without an interval: both means are over the same texts."""
    model = slice(item.keys.index("model"), item.keys.index("model") + 1) if "model" in item.keys else slice(0)
    full = {cell.at for cell in cells if "budget" not in cell.cell.policy.accepts}
    means = {at: number.mean for at, number in numbers.items() if at in full and number.mean is not None}
    relative = dict(numbers)
    for at, number in numbers.items():
        if at not in full and number.mean is not None:
            references = [mean for place, mean in means.items() if place[model] == at[model]]
            mean = number.mean - fmean(references) if references else None
            relative[at] = replace(number, mean=mean, low=None, high=None, rate=False)
    return relative


def differences(cells: Sequence[Placed]) -> tuple[str, ...]:
    """Return how the settings of cells differ from the item's, each way once."""
    return tuple(dict.fromkeys(text for cell in cells for text in cell.differs))
