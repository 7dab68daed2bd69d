"""An item that has, beside each number, its mean over the values of a key (LAVa, Figure 2: over models)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from kvbench.papers.item import At, Item, LayoutKey
from kvbench.papers.numbers import Measured, Placed, numbers_of, with_value
from kvbench.papers.sweep import ItemSweep


@dataclass(frozen=True)
class MeansItem(Item):
    """over: the key of the layout over whose values there is a mean in addition."""

    over: LayoutKey = "model"

    made_by: ClassVar[str] = "kvbench.extras.derived.means:MeansSweep"

    def with_means(self, cells: Sequence[Placed]) -> list[Placed]:
        """Return the cells, and again in the place of their mean over all values; not if there is one value alone."""
        key = self.keys.index(self.over)
        values = dict.fromkeys(cell.at[key] for cell in cells)
        name = f"mean of {', '.join(values)}"
        means = [replace(cell, at=with_value(cell.at, key, name)) for cell in cells] if len(values) > 1 else []
        return [*cells, *means]


class MeansSweep(ItemSweep):
    """Means of rows, and means of these."""

    item: MeansItem

    def numbers(self, cells: Sequence[Placed], smoke: bool) -> dict[At, Measured]:
        return numbers_of(self.item, self.item.with_means(cells), smoke)
