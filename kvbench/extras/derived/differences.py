"""An item of relative differences, |p1 - p2| / p2, for pairs of values of a setting (KVzip, size of its chunks)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import fmean
from typing import ClassVar

from kvbench.papers.item import At, Item, LayoutKey
from kvbench.papers.numbers import Measured, Placed, measured, with_value
from kvbench.papers.sweep import ItemSweep


@dataclass(frozen=True)
class DifferencesItem(Item):
    """between: the key of the layout whose values are compared, two at a time."""

    between: LayoutKey = "chunk"

    made_by: ClassVar[str] = "kvbench.extras.derived.differences:DifferencesSweep"


class DifferencesSweep(ItemSweep):
    """Means of rows, of which the item shows the differences."""

    item: DifferencesItem

    def numbers(self, cells: Sequence[Placed], smoke: bool) -> dict[At, Measured]:
        return relative_differences(self.item, cells)


def relative_differences(item: DifferencesItem, cells: Sequence[Placed]) -> dict[At, Measured]:
    """Return the relative difference of each pair of values, averaged over tasks.

    A task with p2 = 0 has no relative difference and is left out.
    """
    key = item.keys.index(item.between)
    places: dict[At, dict[str, dict[str, Placed]]] = {}
    for cell in cells:
        places.setdefault(with_value(cell.at, key, ""), {}).setdefault(cell.prompts, {})[cell.at[key]] = cell
    numbers = {}
    for at, tasks in places.items():
        for pair in combinations(sorted({value for sizes in tasks.values() for value in sizes}, key=float), 2):
            both = [[sizes[value] for value in pair] for sizes in tasks.values() if sizes.keys() >= {*pair}]
            number = measured([cell for cells in both for cell in cells])
            means = [[cell.summary and cell.summary.mean for cell in cells] for cells in both]
            ratios = [abs(p1 - p2) / p2 for p1, p2 in means if p1 is not None and p2]
            mean = fmean(ratios) if ratios and not number.missing else None
            numbers[with_value(at, key, " and ".join(pair))] = replace(
                number, mean=mean, low=None, high=None, rate=True
            )
    return numbers
