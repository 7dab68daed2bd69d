"""The numbers of an item by their place in its layout: those that the paper printed, and ours with their intervals.

`results/papers/README.md` describes the files of the printed numbers.
"""

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from statistics import fmean

from kvbench.papers.item import KEYS, Item
from kvbench.report.stats.intervals import weighted_interval
from kvbench.report.tables.summary import Summary
from kvbench.support.grouped import grouped
from kvbench.tasks.longbench_averages import CATEGORIES, weights

At = tuple[str, ...]
"""The values of a layout's keys."""
Arms = Mapping[str, Mapping[str, str]]
"""The words of a protocol that stand for each value of an arm, by arm."""
AVERAGE = "average"
"""The head of the last column of a line."""
WORDS = ("text", "complexity")
"""Units of values that are not numbers."""


@dataclass(frozen=True)
class Published:
    """One printed number. `average`: it is the mean of its line, so that only the row keys of `at` count."""

    at: At
    average: bool
    value: str
    unit: str
    protocol: str
    flag: str
    model: str
    task: str

    @property
    def is_number(self) -> bool:
        """Whether the value is a number, and no word or gap."""
        return self.unit not in WORDS and self.value.removeprefix("-").replace(".", "", 1).isdecimal()


@dataclass(frozen=True)
class Placed:
    """One cell of ours: its place, its task, the number of its samples and their summary, None without a row.

    Cells with the same `prompts` read the same texts. differs: how its settings differ from the item's, in words.
    """

    at: At
    task: str
    prompts: str
    model: str
    samples: int
    reference: bool
    summary: Summary | None
    differs: tuple[str, ...]

    @property
    def member(self) -> str:
        """The task without the name of its benchmark."""
        return self.task.partition("/")[2]


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


def published(item: Item, folder: Path) -> list[Published]:
    """Return printed numbers of an item, in the paper's order. Raises FileNotFoundError without the paper's file."""
    if not item.published:
        return []
    with (folder / f"{item.paper}.csv").open(encoding="utf-8", newline="") as file:
        lines = [line for line in csv.DictReader(file) if line["table"] in item.published]
    only = {key: values for key, values in item.only.items() if key in KEYS}
    numbers = [_number(line, item) for line in lines if all(line[key] in values for key, values in only.items())]
    return _published_wins(item, numbers) if item.layout.wins else _merged(numbers)


def kind_of(task: str) -> str:
    """LAVa, Figure 2: tasks that extract an answer from the context, or generate (summaries, code)."""
    member = task.partition("/")[2]
    generating = {*CATEGORIES["summarization"], *CATEGORIES["code"]}
    return "" if not member else "generation" if member in generating else "extraction"


def arms_of(protocol: str, arms: Arms) -> dict[str, str]:
    """Return the value of each arm that a protocol says in the arm's words; "" for one that it does not say."""
    return {arm: next((value for value, part in words.items() if part in protocol), "") for arm, words in arms.items()}


def _number(line: dict[str, str], item: Item) -> Published:
    values = {key: line[key] for key in KEYS} | arms_of(line["protocol"], item.arms)
    values |= {"protocol": line["protocol"], "kind": kind_of(line["task"])}
    return Published(
        at=tuple(values.get(key, "") for key in item.keys),
        average=line["protocol"].startswith("average") and item.has_average,
        **{key: line[key] for key in ("value", "unit", "protocol", "flag", "model", "task")},
    )


def _merged(numbers: Sequence[Published]) -> list[Published]:
    """Return one number per place: the mean of several printed numbers that the layout does not distinguish."""
    merged = []
    for members in grouped(numbers, lambda number: (number.at, number.average)).values():
        first = members[0]
        if len(members) > 1 and all(number.unit not in WORDS and number.value for number in members):
            value = f"{fmean(float(number.value) for number in members):.2f}"
            first = replace(first, value=value, flag=f"mean of {len(members)} printed numbers")
        merged.append(first)
    return merged


def _published_wins(item: Item, numbers: Sequence[Published]) -> list[Published]:
    """Return the tasks that each of a pair of policies wins by the numbers that were printed for each task."""
    counted = [number for number in numbers if "/" in number.task and number.value]
    first = {number.at: number for number in reversed(counted)}
    protocol = "counted by kvbench over the tasks that the paper prints for both"
    values = ((number.task, number.at, float(number.value)) for number in counted)
    return [
        replace(first[at], value=str(wins), unit="tasks", protocol=protocol, flag="")
        for at, (wins, _) in count_wins(item, values).items()
    ]


def count_wins(item: Item, means: Iterable[tuple[str, At, float]]) -> dict[At, tuple[int, int]]:
    """Tasks that each of a pair of policies wins, and tasks that both have, by place; a tie is won by neither.

    means: of tasks at places. Two places are compared if they differ in policy and score alone (LAVa, Figure 5).
    """
    policy = item.keys.index("policy")

    def rest(at: At) -> At:
        return tuple(value for key, value in zip(item.keys, at, strict=True) if key not in ("policy", "score"))

    places: dict[At, dict[str, float]] = {}
    for task, at, mean in means:
        places.setdefault(at, {})[task] = mean
    wins: dict[At, tuple[int, int]] = {}
    for pair in item.layout.wins:
        for at in places:
            if at[policy] not in pair:
                continue
            other = pair[1 - pair.index(at[policy])]
            partners = [places[place] for place in places if place[policy] == other and rest(place) == rest(at)]
            compared = [mean > tasks[task] for tasks in partners for task, mean in places[at].items() if task in tasks]
            if compared:
                wins[at] = sum(compared), len(compared)
    return wins


def places(item: Item, cells: Sequence[Placed], partly: bool = False) -> dict[At, Measured]:
    """Return what was measured at each place of a layout; with `against: full` relative to the mean of the full cache.

    partly: an average may lack tasks, as in a smoke run without their data.
    """
    if item.layout.wins:
        return _measured_wins(item, cells)
    if item.layout.relative is not None:
        return _relative_differences(item, cells, item.layout.relative)
    if item.layout.mean is not None:
        cells = [*cells, *_mean_cells(cells, item.keys.index(item.layout.mean))]
    weight = weights(item.layout.average) if item.layout.average is not None and not item.has_average else None
    cells_at = _grouped(cells, weight)
    numbers = {
        at: measured(members, weight)
        for at, members in cells_at.items()
        if weight is None or partly or {cell.member for cell in members} == set(weight)
    }
    return _against_full(item, cells_at, numbers) if item.layout.against == "full" else numbers


def _mean_cells(cells: Sequence[Placed], key: int) -> list[Placed]:
    """Return the cells in the place of a mean over all values of a key; none if there is one value alone."""
    values = dict.fromkeys(cell.at[key] for cell in cells)
    name = f"mean of {', '.join(values)}"
    return [replace(cell, at=_with(cell.at, key, name)) for cell in cells] if len(values) > 1 else []


def _relative_differences(item: Item, cells: Sequence[Placed], name: str) -> dict[At, Measured]:
    """|p1 - p2| / p2 for each pair of values of a key, averaged over tasks (KVzip, reconstruction chunk size).

    A task with p2 = 0 has no relative difference and is left out.
    """
    key = item.keys.index(name)
    places: dict[At, dict[str, dict[str, Placed]]] = {}
    for cell in cells:
        places.setdefault(_with(cell.at, key, ""), {}).setdefault(cell.prompts, {})[cell.at[key]] = cell
    numbers = {}
    for at, tasks in places.items():
        for pair in combinations(sorted({value for sizes in tasks.values() for value in sizes}, key=float), 2):
            both = [[sizes[value] for value in pair] for sizes in tasks.values() if sizes.keys() >= {*pair}]
            number = measured([cell for cells in both for cell in cells])
            means = [[cell.summary and cell.summary.mean for cell in cells] for cells in both]
            ratios = [abs(p1 - p2) / p2 for p1, p2 in means if p1 is not None and p2]
            mean = fmean(ratios) if ratios and not number.missing else None
            numbers[_with(at, key, " and ".join(pair))] = replace(number, mean=mean, low=None, high=None, rate=True)
    return numbers


def _with(at: At, key: int, value: str) -> At:
    return (*at[:key], value, *at[key + 1 :])


def averages(item: Item, cells: Sequence[Placed], partly: bool = False) -> dict[At, Measured]:
    """Return the average of each line of the layout, by the values of its row keys.

    A line that lacks tasks has none, unless `partly`.
    """
    name = item.layout.average
    if name is None or not item.has_average:
        return {}
    weight = None if name == "plain" else weights(name)
    numbers = {}
    for line, members in _grouped(cells, weight, len(item.layout.rows)).items():
        tasks = {cell.member for cell in members}
        if weight is None or ((partly or tasks == set(weight)) and len(members) == len(tasks)):
            numbers[line] = measured(members, weight)
    return numbers


def _grouped(
    cells: Sequence[Placed], weight: Mapping[str, float] | None, keys: int | None = None
) -> dict[At, list[Placed]]:
    """Return the cells with a weight, by the first `keys` values of their place."""
    weighted = (cell for cell in cells if weight is None or cell.member in weight)
    return grouped(weighted, lambda cell: cell.at[:keys])


def measured(cells: Sequence[Placed], weight: Mapping[str, float] | None = None) -> Measured:
    """Return the mean of cells, weighted equally or by the weights of their tasks.

    The interval of a single cell is its own; of several the interval of a weighted sum of independent means. There is
    none if some cells read the same prompts, and none if no sample differs from another.
    """
    summarized = [(cell, cell.summary) for cell in cells if cell.summary is not None]
    failed = sum(summary.errors + summary.blanks for _, summary in summarized)
    short = sum(cell.samples - summary.n for cell, summary in summarized)
    summaries = [summary for _, summary in summarized if summary.mean is not None]
    missing, rate = len(cells) - len(summaries), all(summary.rate for summary in summaries)
    mean = low = high = None
    if summaries and not missing:
        shares = _shares(cells, weight)
        means = zip(shares, summaries, strict=True)
        mean = math.fsum(share * summary.mean for share, summary in means if summary.mean is not None)
        if len(cells) == 1:
            low, high = summaries[0].low, summaries[0].high
        elif len({cell.prompts for cell in cells}) == len(cells):
            parts = [(share, summary.variance, summary.n) for share, summary in zip(shares, summaries, strict=True)]
            low, high = weighted_interval(mean, parts, rate)
            low, high = (None, None) if low == high else (low, high)
    n = sum(summary.n for summary in summaries)
    return Measured(mean, n, len(cells), missing, max(failed, short), low, high, rate, _differences(cells))


def _shares(cells: Sequence[Placed], weight: Mapping[str, float] | None) -> list[float]:
    """Return the weight of each cell in a mean: equal, or the weight of its task over the weights of all tasks."""
    if weight is None:
        return [1 / len(cells)] * len(cells)
    total = math.fsum({cell.member: weight[cell.member] for cell in cells}.values())
    return [weight[cell.member] / total for cell in cells]


def _measured_wins(item: Item, cells: Sequence[Placed]) -> dict[At, Measured]:
    """Return the tasks on which one of a pair of policies has the higher mean, of the tasks that both have, which n
    counts.
    """
    short = {cell.at: 0 for cell in cells}
    for cell in cells:
        short[cell.at] += cell.summary is None or cell.summary.n < cell.samples
    means = (
        (cell.task, cell.at, cell.summary.mean)
        for cell in cells
        if cell.summary is not None and cell.summary.mean is not None
    )
    differs = _differences(cells)
    return {
        at: Measured(wins, tasks, tasks, failed=short[at], differs=differs)
        for at, (wins, tasks) in count_wins(item, means).items()
    }


def _against_full(
    item: Item, cells_at: Mapping[At, Sequence[Placed]], numbers: Mapping[At, Measured]
) -> dict[At, Measured]:
    """Differences to the full cache of the same model, without an interval: both means are over the same texts."""
    model = item.keys.index("model") if "model" in item.keys else None
    full: dict[str | None, list[float]] = {}
    for at, members in cells_at.items():
        mean = numbers[at].mean
        if members[0].reference and mean is not None:
            full.setdefault(None if model is None else at[model], []).append(mean)
    relative = {}
    for at, members in cells_at.items():
        number, references = numbers[at], full.get(None if model is None else at[model])
        if not members[0].reference and number.mean is not None:
            mean = number.mean - fmean(references) if references else None
            number = replace(number, mean=mean, low=None, high=None, rate=False)
        relative[at] = number
    return relative


def _differences(cells: Sequence[Placed]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text for cell in cells for text in cell.differs))
