"""Figures of a paper from the numbers of its page: curves, and bars of won tasks; ours beside the published ones."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter

from kvbench.papers.item import AVERAGE, At
from kvbench.papers.labels import line_labels, names_of, printed_name
from kvbench.papers.page import Page
from kvbench.papers.published import number_of
from kvbench.papers.tables import FULL
from kvbench.report.colours import looks
from kvbench.report.plots import curves
from kvbench.report.plots.bars import HATCHES
from kvbench.report.plots.canvas import MOST_PANELS, REFERENCE, Marks, Point, label_axes, panels
from kvbench.report.plots.curves import CurvePlot, Panel, Trace
from kvbench.report.selection import NothingSelected

Lines = dict[At, list[Point]]
"""The points of each line of a panel."""


def draw_curves(page: Page) -> Figure:
    """Means with intervals against the item's x. Raises NothingSelected if no place has a number.

    Of more panels than a picture holds the first ones are drawn, and the heading says so.
    """
    found, layout = _panels(page), page.item.layout
    shown = dict([*_in_order(found).items()][:MOST_PANELS])
    rest = f"; {len(found) - MOST_PANELS} more panels are not drawn" if len(found) > MOST_PANELS else ""
    keys = [key for key in layout.rows if key not in layout.panels]
    names = dict.fromkeys(line for lines in found.values() for line in lines)
    labels = {line: ", ".join(filter(None, line_labels(names_of(page.item), keys, line).values())) for line in names}
    parts = {line: (line[0], " ".join(line[1:])) for line in labels}
    marks = Marks.over(part for line, part in parts.items() if FULL not in line)

    def trace(line: At, points: Sequence[Point]) -> Trace:
        label = {"label": labels[line]}
        if _is_level(line, points):
            return Trace(points, {"zorder": 1, **REFERENCE, **label}, is_level=True)
        style = {**REFERENCE, "marker": "."} if FULL in line else marks.of(parts[line])
        return Trace(sorted(points, key=lambda point: point[0]), {"zorder": 3, **style, **label})

    def scale(axes: Sequence[Axes]) -> None:
        for axis, (key, lines) in zip(axes, shown.items(), strict=True):
            _scale(axis, lines, key[1] == "ours" and unit == "mean score (%)")

    unit = _unit(page)
    plot = CurvePlot(
        heading="\n".join((page.item.title, *page.head)) + rest,
        panels=[
            Panel(", ".join(filter(None, key)), [trace(*line) for line in lines.items()], _axis(page, lines), unit)
            for key, lines in shown.items()
        ],
        labels=list(labels.values()),
        scale=scale,
        layout={"columns": 2, "sharey": False},
    )
    return curves.draw_curves(plot)


def draw_wins(page: Page) -> Figure:
    """Tasks won, two bars per budget (LAVa, Figure 5). Raises NothingSelected if nobody has won or lost."""
    shown, labels, bars = _in_order(_panels(page)), names_of(page.item), {}
    figure, axes = panels(
        [", ".join(key) for key in shown], "\n".join((page.item.title, *page.head)), columns=2, sharey=False
    )
    for axis, lines in zip(axes, shown.values(), strict=True):
        heights = {line[0]: {x: y for x, y, *_ in points} for line, points in lines.items()}
        budgets = sorted({budget for of_line in heights.values() for budget in of_line})
        pair = next(pair for pair in page.item.layout.wins if {*heights} & {*pair})
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


def _panels(page: Page) -> dict[tuple[str, str], Lines]:
    """Return the lines of every panel by its title and source (ours or published); pairs of `wins` are panels too.

    Raises NothingSelected if no place has a number.
    """
    layout, labels = page.item.layout, names_of(page.item)
    pairs = {pair: " against ".join(labels.get(policy, policy) for policy in pair) for pair in layout.wins}
    found: dict[tuple[str, str], Lines] = {}
    for number in page.numbers:
        values = dict(zip(page.item.keys, number.at, strict=True))
        x, ours = number_of(values[layout.x or "budget"]), number.ours
        if AVERAGE in number.at or x is None:
            continue
        title = ", ".join(
            f"{values[key]} tokens" if key == "context_length" else printed_name(labels, key, values[key])
            for key in layout.panels
        )
        title = next((name for pair, name in pairs.items() if values["policy"] in pair), title)
        line = tuple(values[key] for key in layout.rows if key not in layout.panels)
        if ours is not None and ours.mean is not None:
            mean, low, high = (end and end * (100.0 if ours.rate else 1.0) for end in (ours.mean, ours.low, ours.high))
            found.setdefault((title, "ours"), {}).setdefault(line, []).append((x, mean or 0.0, low, high))
        if number.published is not None and (printed := number_of(number.published.value)) is not None:
            found.setdefault((title, "published"), {}).setdefault(line, []).append((x, printed, None, None))
    if not found:
        raise NothingSelected(f"{page.item.name} has no numbers to draw")
    return found


def _in_order(found: Mapping[tuple[str, str], Lines]) -> dict[tuple[str, str], Lines]:
    """Return panels with what a paper printed beside ours."""
    titles = [title for title, _ in found]
    return dict(sorted(found.items(), key=lambda panel: (titles.index(panel[0][0]), panel[0][1])))


def _unit(page: Page) -> str:
    """Return the label of an axis: the quantity and its unit."""
    rates = [number.ours.rate for number in page.numbers if number.ours is not None]
    units = {number.published.unit for number in page.numbers if number.published is not None} | {page.item.layout.unit}
    return next(iter(units - {"", "percent"}), "mean score (%)" if all(rates) else "mean score")


def _axis(page: Page, lines: Lines) -> str:
    """Return the label of the horizontal axis, with its unit."""
    key = page.item.layout.x or "budget"
    if key != "budget":
        return f"{key.replace('_', ' ')} (tokens)"
    shares = all(x <= 1 for points in lines.values() for x, *_ in points)
    return f"budget ({'share of KV pairs kept' if shares else 'KV pairs per head'})"


def _is_level(line: At, points: Sequence[Point]) -> bool:
    """Return whether the full cache has one number for all places of the axis."""
    return FULL in line and len(points) == 1


def _scale(axis: Axes, lines: Mapping[At, Sequence[Point]], percent: bool) -> None:
    ticks = sorted({x for line, points in lines.items() if not _is_level(line, points) for x, *_ in points})
    if percent and len({point[1] for points in lines.values() for point in points}) == 1:  # else an axis of tenths
        axis.set_ylim(-3, 105)
    if ticks and ticks[0] > 0 and ticks[-1] / ticks[0] >= 5:
        axis.set_xscale("log", base=2)
        axis.xaxis.set_minor_formatter(NullFormatter())
    if len(ticks) <= 6:
        axis.set_xticks(ticks, [f"{value:g}" for value in ticks])
