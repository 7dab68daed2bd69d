"""Numbers that a paper printed, by their place in its layout; `results/papers/README.md` describes the files."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from kvbench.papers.item import KEYS, Item
from kvbench.papers.pairs import counted
from kvbench.tasks.longbench.averages import CATEGORIES

AVERAGE = "average"
"""What stands for the last column of a line."""
WORDS = ("text", "complexity")


@dataclass(frozen=True)
class Published:
    """One printed number: `at` are the values of the layout's keys, `average` says that it is the line's mean."""

    at: tuple[str, ...]
    average: bool
    value: str
    unit: str
    protocol: str
    flag: str
    model: str
    task: str


def published(item: Item, folder: Path) -> list[Published]:
    """Numbers of an item, in the paper's order. Raises FileNotFoundError where the paper's file is not there."""
    found: list[Published] = []
    if not item.published:
        return found
    with (folder / f"{item.paper}.csv").open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            if line["table"] in item.published and _asked(line, item):
                found.append(_number(line, item))
    return _wins(item, found) if item.layout.wins else _merged(found)


def _wins(item: Item, found: Sequence[Published]) -> list[Published]:
    """How many tasks each of a pair of policies wins by the numbers that were printed for each task."""
    by_task: dict[str, dict[tuple[str, ...], float]] = {}
    first: dict[tuple[str, ...], Published] = {}
    for one in found:
        if one.task.count("/") and one.value:
            by_task.setdefault(one.task, {})[one.at] = float(one.value)
            first.setdefault(one.at, one)
    said = "counted by us over the tasks that are printed for both"
    return [
        replace(first[at], value=str(wins), unit="tasks", protocol=said, flag="")
        for at, (wins, _) in counted(item, by_task).items()
    ]


def _merged(found: Sequence[Published]) -> list[Published]:
    """One number a place: the mean where the layout leaves out what tells printed numbers apart."""
    places: dict[tuple[tuple[str, ...], bool], list[Published]] = {}
    for one in found:
        places.setdefault((one.at, one.average), []).append(one)
    merged = []
    for members in places.values():
        first = members[0]
        if len(members) > 1 and all(one.unit not in WORDS and one.value for one in members):
            value = f"{fmean(float(one.value) for one in members):.2f}"
            first = replace(first, value=value, flag=f"mean of {len(members)} printed numbers")
        merged.append(first)
    return merged


def kind_of(task: str) -> str:
    """LAVa, Figure 2: tasks that extract an answer from the context, or generate (summaries, code)."""
    member = task.partition("/")[2]
    generate = {*CATEGORIES["summarization"], *CATEGORIES["code"]}
    return "" if not member else "generation" if member in generate else "extraction"


def _asked(line: dict[str, str], item: Item) -> bool:
    return all(line[key] in values for key, values in item.only.items())


def _number(line: dict[str, str], item: Item) -> Published:
    keys = item.keys
    values = {key: line[key] for key in KEYS}
    for arm, words in item.arms.items():
        values[arm] = next((value for value, part in words.items() if part in line["protocol"]), "")
    values["protocol"] = line["protocol"]
    values["kind"] = kind_of(line["task"])
    average = line["protocol"].startswith("average") and item.has_average
    return Published(
        at=tuple(values.get(key, "") for key in keys),
        average=average,
        value=line["value"],
        unit=line["unit"],
        protocol=line["protocol"],
        flag=line["flag"],
        model=line["model"],
        task=line["task"],
    )
