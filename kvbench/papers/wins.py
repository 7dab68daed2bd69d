"""A figure of wins (LAVa, Figure 5): two bars a budget, a panel a pair of policies, ours beside the published."""

from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from kvbench.papers.page import Page
from kvbench.report.plots.canvas import COLOURS, is_first, legend_at, panels
from kvbench.report.selection import NothingSelected
from kvbench.report.tables.summary import budget_key

HATCHES = ("", "////")


def draw_wins(page: Page) -> Figure:
    """Tasks won, by budget. Raises NothingSelected where nobody has won or lost."""
    item = page.item
    found: dict[tuple[tuple[str, str], str], dict[tuple[str, str], float]] = {}
    for at, ours, theirs, _ in page.numbers:
        keyed = dict(zip(item.keys, at, strict=True))
        pair = next((pair for pair in item.layout.wins if keyed["policy"] in pair), None)
        if pair is None:
            continue
        if ours is not None and ours.mean is not None:
            found.setdefault((pair, "ours"), {})[keyed["budget"], keyed["policy"]] = ours.mean
        if theirs is not None:
            found.setdefault((pair, "published"), {})[keyed["budget"], keyed["policy"]] = float(theirs.value)
    if not found:
        raise NothingSelected(f"{item.name} has no numbers to draw")
    order = sorted(found, key=lambda key: (item.layout.wins.index(key[0]), key[1]))
    own = [f"{first} against {second}, {whose}" for (first, second), whose in order]
    figure, axes = panels(own, "\n".join(page.head), columns=2, sharey=False, margin=1.9)
    for axis, key in zip(axes, order, strict=True):
        budgets = sorted({budget for budget, _ in found[key]}, key=budget_key)
        for side, policy in enumerate(key[0]):
            heights = [found[key].get((budget, policy), 0) for budget in budgets]
            xs = [place + 0.4 * side - 0.2 for place in range(len(budgets))]
            colour = COLOURS[2 * item.layout.wins.index(key[0]) + side]
            bars = axis.bar(xs, heights, width=0.36, color=colour, hatch=HATCHES[side], edgecolor="white")
            axis.bar_label(bars, fmt="%g", fontsize=6.5, padding=1)
        axis.set_xticks(range(len(budgets)), budgets)
        axis.yaxis.set_major_locator(MaxNLocator(5, integer=True))
        axis.set_xlabel("budget")
        axis.set_ylabel("tasks won" if is_first(axis) else "")
        axis.margins(y=0.12)
        axis.grid(visible=False, axis="x")
    handles = [
        Patch(
            facecolor=COLOURS[2 * item.layout.wins.index(pair) + side],
            hatch=HATCHES[side],
            edgecolor="white",
            label=policy,
        )
        for pair in item.layout.wins
        for side, policy in enumerate(pair)
    ]
    figure.legend(handles=handles, **legend_at(figure, 1.9, below=True))
    return figure
