"""The numbers that a paper printed, by their place in an item's layout. `results/papers/README.md` describes the files.

Also what both printed and measured numbers need: the values of arms, and on how many tasks one policy beats another.
"""

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from kvbench.papers.item import KEYS, At, Item
from kvbench.support.grouped import grouped
from kvbench.tasks.longbench_averages import CATEGORIES

Arms = Mapping[str, Mapping[str, str]]
"""The words of a protocol that stand for each value of an arm, by arm."""
WORDS = ("text", "complexity")
"""Units of values that are not numbers."""


@dataclass(frozen=True)
class Published:
    """One printed number."""

    at: At
    value: str
    unit: str
    protocol: str
    flag: str
    task: str

    @property
    def is_number(self) -> bool:
        """Whether the value is a number, and no word or gap."""
        return self.unit not in WORDS and self.value.removeprefix("-").replace(".", "", 1).isdecimal()


def published(item: Item, folder: Path) -> list[Published]:
    """Return printed numbers of an item, in the paper's order. Raises FileNotFoundError without the paper's file."""
    if not item.published:
        return []
    with (folder / f"{item.paper}.csv").open(encoding="utf-8", newline="") as file:
        lines = [line for line in csv.DictReader(file) if line["table"] in item.published]
    only = {key: values for key, values in item.only.items() if key in KEYS}
    numbers = [_number(line, item) for line in lines if all(line[key] in values for key, values in only.items())]
    return _wins(item, numbers) if item.layout.wins else _merged(numbers)


def number_of(text: str) -> float | None:
    """Return a printed text as a number; None for words and gaps."""
    try:
        return float(text)
    except ValueError:
        return None


def kind_of(task: str) -> str:
    """LAVa, Figure 2: tasks that extract an answer from the context, or generate (summaries, code)."""
    member = task.partition("/")[2]
    generating = {*CATEGORIES["summarization"], *CATEGORIES["code"]}
    return "" if not member else "generation" if member in generating else "extraction"


def arms_of(protocol: str, arms: Arms) -> dict[str, str]:
    """Return the value of each arm that a protocol says in the arm's words; "" for one that it does not say."""
    return {arm: next((value for value, part in words.items() if part in protocol), "") for arm, words in arms.items()}


def _number(line: dict[str, str], item: Item) -> Published:
    values = {key: line[key] for key in (*KEYS, "protocol")} | arms_of(line["protocol"], item.arms)
    values["kind"] = kind_of(line["task"])
    at = tuple(values.get(key, "") for key in item.keys)
    if line["protocol"].startswith("average") and item.has_average:
        at = item.average(item.line(at))
    return Published(at, **{key: line[key] for key in ("value", "unit", "protocol", "flag", "task")})


def _merged(numbers: Sequence[Published]) -> list[Published]:
    """Return one number per place: the mean of several printed numbers that the layout does not distinguish."""
    merged = []
    for members in grouped(numbers, lambda number: number.at).values():
        first = members[0]
        if len(members) > 1 and all(number.unit not in WORDS and number.value for number in members):
            value = f"{fmean(float(number.value) for number in members):.2f}"
            first = replace(first, value=value, flag=f"mean of {len(members)} printed numbers")
        merged.append(first)
    return merged


def _wins(item: Item, numbers: Sequence[Published]) -> list[Published]:
    """Return the tasks that each of a pair of policies wins by the numbers that were printed for each task."""
    counted = [number for number in numbers if "/" in number.task and number.value]
    first = {number.at: number for number in reversed(counted)}
    protocol = "counted by kvbench over the tasks that the paper prints for both"
    wins = count_wins(item, ((number.task, number.at, float(number.value)) for number in counted))
    return [
        replace(first[at], value=str(won), unit="tasks", protocol=protocol, flag="") for at, (won, _) in wins.items()
    ]


def count_wins(item: Item, means: Iterable[tuple[str, At, float]]) -> dict[At, tuple[int, int]]:
    """Tasks that each of a pair of policies wins, and tasks that both have, by place; a tie is won by neither.

    means: of tasks at places. Two places are compared if they differ in policy and score alone (LAVa, Figure 5).
    """
    policy = item.keys.index("policy")
    places: dict[At, dict[str, float]] = {}
    for task, at, mean in means:
        places.setdefault(at, {})[task] = mean

    def rest(at: At) -> At:
        return tuple(value for key, value in zip(item.keys, at, strict=True) if key not in ("policy", "score"))

    wins: dict[At, tuple[int, int]] = {}
    for pair in item.layout.wins:
        for at in (at for at in places if at[policy] in pair):
            other = pair[1 - pair.index(at[policy])]
            partners = [places[place] for place in places if place[policy] == other and rest(place) == rest(at)]
            won = [mean > tasks[task] for tasks in partners for task, mean in places[at].items() if task in tasks]
            if won:
                wins[at] = sum(won), len(won)
    return wins
