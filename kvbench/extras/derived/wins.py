"""An item of won tasks: on how many tasks one of a pair of policies has the higher mean (LAVa, Figure 5)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from kvbench.papers.figures import panels_of
from kvbench.papers.item import At, Item, LayoutKey, Published
from kvbench.papers.labels import names_of
from kvbench.papers.numbers import Measured, Placed, differences
from kvbench.papers.page import Page
from kvbench.papers.sweep import ItemSweep
from kvbench.report.colours import looks
from kvbench.report.plots.bars import HATCHES
from kvbench.report.plots.canvas import label_axes, panels
from kvbench.support.grouped import grouped
from kvbench.work.planned import Sweep

COUNTED = "counted by kvbench over the tasks that the paper prints for both"
"""The protocol of published wins."""


@dataclass(frozen=True)
class WinsItem(Item):
    """pairs: of policies that are compared with each other."""

    pairs: tuple[tuple[str, str], ...] = ()

    made_by: ClassVar[str] = "kvbench.extras.derived.wins:WinsSweep"

    def one_each(self, numbers: Sequence[Published]) -> list[Published]:
        """Return the tasks that each of a pair of policies wins by the numbers that were printed for each task."""
        counted = [number for number in numbers if "/" in number.task and number.value]
        first = {number.at: number for number in reversed(counted)}
        wins = self.wins((number.task, number.at, float(number.value)) for number in counted)
        return [
            replace(first[at], value=str(won), unit="tasks", protocol=COUNTED, flag="") for at, (won, _) in wins.items()
        ]

    def wins(self, means: Iterable[tuple[str, At, float]]) -> dict[At, tuple[int, int]]:
        """Tasks that each of a pair of policies wins, and tasks that both have, by place; a tie is won by neither.

        means: of tasks at places. Two places are compared if they differ in policy and score alone.
        """
        policy = self.keys.index("policy")
        places: dict[At, dict[str, float]] = {}
        for task, at, mean in means:
            places.setdefault(at, {})[task] = mean

        def rest(at: At) -> At:
            return tuple(value for key, value in zip(self.keys, at, strict=True) if key not in ("policy", "score"))

        wins: dict[At, tuple[int, int]] = {}
        for pair in self.pairs:
            for at in (at for at in places if at[policy] in pair):
                other = pair[1 - pair.index(at[policy])]
                partners = [places[place] for place in places if place[policy] == other and rest(place) == rest(at)]
                won = [mean > tasks[task] for tasks in partners for task, mean in places[at].items() if task in tasks]
                if won:
                    wins[at] = sum(won), len(won)
        return wins


class WinsSweep(ItemSweep):
    """Means of rows, of which the item shows who wins."""

    item: WinsItem

    def numbers(self, cells: Sequence[Placed], smoke: bool) -> dict[At, Measured]:
        return measured_wins(self.item, cells)

    def figure(self, shown: Page, sweep: Sweep) -> Figure:
        return draw_wins(self.item, shown)


def measured_wins(item: WinsItem, cells: Sequence[Placed]) -> dict[At, Measured]:
    """Return the tasks that each of a pair of policies wins, of the tasks that both have, which n counts."""
    short = {at: sum(cell.lacks > 0 for cell in same) for at, same in grouped(cells, lambda cell: cell.at).items()}
    with_rows = ((cell.cell.task.name, cell.at, cell.summary.mean) for cell in cells if cell.summary is not None)
    means = ((task, at, mean) for task, at, mean in with_rows if mean is not None)
    differs = differences(cells)
    return {
        at: Measured(won, tasks, tasks, failed=short[at], differs=differs)
        for at, (won, tasks) in item.wins(means).items()
    }


def draw_wins(item: WinsItem, page: Page) -> Figure:
    """Return bars of the tasks won, two per budget. Raises NothingSelected if nobody has won or lost."""
    labels, bars = names_of(item), {}

    def against(values: Mapping[LayoutKey, str]) -> str:
        pair = next(pair for pair in item.pairs if values["policy"] in pair)
        return " against ".join(labels.get(policy, policy) for policy in pair)

    shown = panels_of(page, against)
    figure, axes = panels(
        [", ".join(key) for key in shown], "\n".join((item.title, *page.head)), columns=2, sharey=False
    )
    for axis, lines in zip(axes, shown.values(), strict=True):
        heights = {line[0]: {x: y for x, y, *_ in points} for line, points in lines.items()}
        budgets = sorted({budget for of_line in heights.values() for budget in of_line})
        pair = next(pair for pair in item.pairs if {*heights} & {*pair})
        for side, policy in enumerate(pair):
            xs = [place + 0.4 * side - 0.2 for place in range(len(budgets))]
            tops = [heights.get(policy, {}).get(budget, 0) for budget in budgets]
            colour = looks(pair)[policy].colour
            drawn = axis.bar(xs, tops, width=0.36, color=colour, hatch=HATCHES[side], edgecolor="white")
            axis.bar_label(drawn, fmt="%g", fontsize=6.5, padding=1)
            bars[labels.get(policy, policy)] = drawn
        axis.set_xticks(range(len(budgets)), [f"{budget:g}" for budget in budgets])
        axis.yaxis.set_major_locator(MaxNLocator(5, integer=True))
        label_axes(axis, "budget (KV pairs per head)", "tasks won")
        axis.margins(y=0.12)
        axis.grid(visible=False, axis="x")
    figure.legend([*bars.values()], [*bars], loc="upper left", bbox_to_anchor=(1, 0.9))
    return figure
