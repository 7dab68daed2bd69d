"""Figures of a paper from the numbers of its page: curves, ours beside the published ones."""

from collections.abc import Callable, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from kvbench.papers.item import AVERAGE, At, LayoutKey
from kvbench.papers.labels import line_labels, names_of, printed_name
from kvbench.papers.page import Page
from kvbench.papers.published import number_of
from kvbench.papers.tables import FULL
from kvbench.report.plots import curves
from kvbench.report.plots.canvas import MOST_PANELS, REFERENCE, Marks, Point
from kvbench.report.plots.curves import Panel, Trace
from kvbench.report.selection import NothingSelected

Values = Mapping[LayoutKey, str]
"""The values of a layout's keys at a place."""
Lines = dict[At, list[Point]]
"""The points of each line of a panel."""


def draw_curves(page: Page) -> Figure:
    """Means with intervals against budgets. Raises NothingSelected if no place has a number.

    Of more panels than a picture holds the first ones are drawn, and the heading says so.
    """
    labels_of, layout = names_of(page.item), page.item.layout
    by_panel = panels_of(
        page, lambda values: ", ".join(printed_name(labels_of, key, values[key]) for key in layout.panels)
    )
    shown_panels = dict([*by_panel.items()][:MOST_PANELS])
    hidden_panels = f"; {len(by_panel) - MOST_PANELS} more panels are not drawn" if len(by_panel) > MOST_PANELS else ""
    keys = [key for key in layout.rows if key not in layout.panels]
    names = dict.fromkeys(line for lines in by_panel.values() for line in lines)
    labels = {line: ", ".join(filter(None, line_labels(labels_of, keys, line).values())) for line in names}
    parts = {line: (line[0], " ".join(line[1:])) for line in labels}
    marks = Marks.over(part for line, part in parts.items() if FULL not in line)

    def trace(line: At, points: Sequence[Point]) -> Trace:
        label = {"label": labels[line]}
        if _is_level(line, points):
            return Trace(points, {"zorder": 1, **REFERENCE, **label}, is_level=True)
        style = {**REFERENCE, "marker": "."} if FULL in line else marks.of(parts[line])
        return Trace(sorted(points, key=lambda point: point[0]), {"zorder": 3, **style, **label})

    def scale(axes: Sequence[Axes]) -> None:
        for axis, (key, lines) in zip(axes, shown_panels.items(), strict=True):
            _scale(axis, lines, key[1] == "ours" and unit == "mean score (%)")

    unit = _unit(page)
    return curves.draw_curves(
        heading="\n".join((page.item.title, *page.head)) + hidden_panels,
        panels=[
            Panel(", ".join(filter(None, key)), [trace(*line) for line in lines.items()], _axis(lines), unit)
            for key, lines in shown_panels.items()
        ],
        labels=list(labels.values()),
        scale=scale,
        columns=2,
        sharey=False,
    )


def panels_of(page: Page, title_of: Callable[[Values], str]) -> dict[tuple[str, str], Lines]:
    """Return the lines of every panel by its title and source (ours or published), what was printed beside ours.

    title_of: the title of the panel of a place, whose values are given by key. Raises NothingSelected if no place has a
    number.
    """
    layout, lines = page.item.layout, dict[tuple[str, str], Lines]()
    for number in page.numbers:
        values = dict(zip(page.item.keys, number.at, strict=True))
        x, ours, title = number_of(values["budget"]), number.ours, title_of(values)
        if AVERAGE in number.at or x is None:
            continue
        line = tuple(values[key] for key in layout.rows if key not in layout.panels)
        if ours is not None and ours.mean is not None:
            mean, low, high = (end and end * (100.0 if ours.rate else 1.0) for end in (ours.mean, ours.low, ours.high))
            lines.setdefault((title, "ours"), {}).setdefault(line, []).append((x, mean or 0.0, low, high))
        if number.published is not None and (printed := number_of(number.published.value)) is not None:
            lines.setdefault((title, "published"), {}).setdefault(line, []).append((x, printed, None, None))
    if not lines:
        raise NothingSelected(f"{page.item.name} has no numbers to draw")
    titles = [title for title, _ in lines]
    return dict(sorted(lines.items(), key=lambda panel: (titles.index(panel[0][0]), panel[0][1])))


def _unit(page: Page) -> str:
    """Return the label of an axis: the quantity and its unit."""
    rates = [number.ours.rate for number in page.numbers if number.ours is not None]
    units = {number.published.unit for number in page.numbers if number.published is not None} | {page.item.layout.unit}
    return next(iter(units - {"", "percent"}), "mean score (%)" if all(rates) else "mean score")


def _axis(lines: Lines) -> str:
    """Return the label of the horizontal axis: what budgets are."""
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
