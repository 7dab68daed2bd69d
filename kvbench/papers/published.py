"""Numbers that a paper printed, by their place in an item's layout. `results/papers/README.md` describes the files."""

import csv
from collections.abc import Mapping
from pathlib import Path

from kvbench.papers.item import KEYS, Arm, Item, Published
from kvbench.tasks.longbench_averages import CATEGORIES

Arms = Mapping[Arm, Mapping[str, str]]
"""The words of a protocol that stand for each value of an arm, by arm."""


def published(item: Item, folder: Path) -> list[Published]:
    """Return printed numbers of an item, in the paper's order. Raises FileNotFoundError without the paper's file."""
    if not item.published:
        return []
    with (folder / f"{item.paper}.csv").open(encoding="utf-8", newline="") as file:
        lines = [line for line in csv.DictReader(file) if line["table"] in item.published]
    return item.one_each(
        [_number(line, item) for line in lines if all(line[key] in values for key, values in item.only.items())]
    )


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
