"""Numbers that a paper printed, by their place in its layout; `results/papers/README.md` describes the files."""

import csv
from dataclasses import dataclass
from pathlib import Path

from kvbench.report.papers.item import KEYS, Item

AVERAGE = "average"
"""What stands for the last column of a line."""
GROUPS = ("longbench", "ruler", "scbench", "infinitebench")
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


def published(item: Item, folder: Path) -> list[Published]:
    """Numbers of an item, in the paper's order. Raises FileNotFoundError where the paper's file is not there."""
    found = []
    if not item.published:
        return found
    with (folder / f"{item.paper}.csv").open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            if line["table"] in item.published and _asked(line, item):
                found.append(_number(line, item))
    return found


def _asked(line: dict[str, str], item: Item) -> bool:
    return all(line[key] in values for key, values in item.only.items())


def _number(line: dict[str, str], item: Item) -> Published:
    keys = item.keys
    values = {key: line[key] for key in KEYS}
    for arm, words in item.arms.items():
        values[arm] = next((value for value, part in words.items() if part in line["protocol"]), "")
    values["protocol"] = line["protocol"]
    average = line["protocol"].startswith("average") and item.layout.average is not None
    return Published(
        at=tuple(values.get(key, "") for key in keys),
        average=average,
        value=line["value"],
        unit=line["unit"],
        protocol=line["protocol"],
        flag=line["flag"],
        model=line["model"],
    )
