"""Figures of a paper from the numbers of its page: curves, and bars of won tasks; ours beside the published ones."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, NullFormatter

from kvbench.papers.item import line_labels, names_of, printed_name
from kvbench.papers.numbers import AVERAGE, At, Measured
from kvbench.papers.page import Page
from kvbench.report.colours import looks
from kvbench.report.plots import curves
from kvbench.report.plots.canvas import REFERENCE, Marks, Point, label_axes, panels
from kvbench.report.plots.curves import CurvePlot, Panel, Trace
from kvbench.report.selection import NothingSelected
from kvbench.report.tables.summary import budget_key

MOST = 24
"""The maximum number of panels of a picture."""
HATCHES = ("", "////")


def draw_curves(page: Page) -> Figure:
    """Means with intervals against the item's x. Raises NothingSelected if no place has a number.

    Of more panels than `MOST` the first ones are drawn, and the heading says so.
    """
    panel_lines = _curves(page)
    if not panel_lines:
        raise NothingSelected(f"{page.item.name} has no numbers to draw")
    order = list(dict.fromkeys(panel for panel, _ in panel_lines))
    shown = sorted(panel_lines, key=lambda key: (order.index(key[0]), key[1]))
    rest = f"; {len(shown) - MOST} more panels are not drawn" if len(shown) > MOST else ""
    shown = shown[:MOST]
    names = list(dict.fromkeys(line for lines in panel_lines.values() for line in lines))
    keys = [key for key in page.item.layout.rows if key not in page.item.layout.panels]
    labels = [", ".join(filter(None, line_labels(names_of(page.item), keys, line))) for line in names]
    marks, unit = _marks(dict(zip(names, labels, strict=True))), _unit(page)

    def scale(axes: Sequence[Axes]) -> None:
        for axis, key in zip(axes, shown, strict=True):
            _scale(axis, panel_lines[key], key[1] == "ours" and unit == "mean score (%)")

    plot = CurvePlot(
        heading="\n".join((page.item.title, *page.head)) + rest,
        panels=[
            Panel(
                ", ".join(part for part in key if part),
                [_trace(line, points, marks) for line, points in panel_lines[key].items()],
                _axis(page.item.layout.x or "budget", panel_lines[key]),
                unit,
            )
            for key in shown
        ],
        labels=labels,
        scale=scale,
        layout={"columns": 2, "sharey": False},
    )
    return curves.draw_curves(plot)


def _curves(page: Page) -> dict[tuple[str, str], dict[At, list[Point]]]:
    """Return the points of every line, by panel and by source (ours or published)."""
    layout, labels = page.item.layout, names_of(page.item)
    curves: dict[tuple[str, str], dict[At, list[Point]]] = {}
    for number in page.numbers:
        values = dict(zip(page.item.keys, number.at, strict=True))
        x = _number(values[layout.x or "budget"])
        if AVERAGE in number.at or x is None:
            continue
        panel = ", ".join(
            f"{values[key]} tokens" if key == "context_length" else printed_name(labels, key, values[key])
            for key in layout.panels
        )
        line = tuple(values[key] for key in layout.rows if key not in layout.panels)
        if number.ours is not None and number.ours.mean is not None:
            curves.setdefault((panel, "ours"), {}).setdefault(line, []).append((x, *_scaled(number.ours)))
        published_value = None if number.published is None else _number(number.published.value)
        if published_value is not None:
            curves.setdefault((panel, "published"), {}).setdefault(line, []).append((x, published_value, None, None))
    return curves


def _unit(page: Page) -> str:
    """Return the label of an axis: the quantity and its unit."""
    rates = [number.ours.rate for number in page.numbers if number.ours is not None]
    units = {number.published.unit for number in page.numbers if number.published is not None} | {page.item.layout.unit}
    return next(iter(units - {"", "percent"}), "mean score (%)" if all(rates) else "mean score")


def _axis(key: str, lines: Mapping[At, list[Point]]) -> str:
    """Return the label of the horizontal axis, with its unit."""
    if key != "budget":
        return f"{key.replace('_', ' ')} (tokens)"
    shares = all(x <= 1 for points in lines.values() for x, *_ in points)
    return f"budget ({'share of KV pairs kept' if shares else 'KV pairs per head'})"


def _marks(labels: Mapping[At, str]) -> dict[At, dict[str, Any]]:
    """Return the style of each line: the style of its policy or score in all figures, and grey for the full cache."""
    parts = {name: (name[0], " ".join(name[1:])) for name in labels if "full" not in name}
    marks = Marks.over(parts.values())
    grey = {**REFERENCE, "marker": "."}
    return {
        name: {**(marks.of(parts[name]) if name in parts else grey), "label": label} for name, label in labels.items()
    }


def _is_level(line: At, points: Sequence[Point]) -> bool:
    """Return whether the full cache has one number for all places of the axis."""
    return "full" in line and len(points) == 1


def _trace(line: At, points: Sequence[Point], marks: Mapping[At, Any]) -> Trace:
    if _is_level(line, points):
        return Trace(points, {"zorder": 1, **REFERENCE, "label": marks[line]["label"]}, is_level=True)
    return Trace(sorted(points, key=lambda point: point[0]), {"zorder": 3, **marks[line]})


def _scale(axis: Axes, lines: Mapping[At, list[Point]], percent: bool) -> None:
    ticks = sorted({x for line, points in lines.items() if not _is_level(line, points) for x, *_ in points})
    if percent and len({point[1] for points in lines.values() for point in points}) == 1:  # else an axis of tenths
        axis.set_ylim(-3, 105)
    if ticks and ticks[0] > 0 and ticks[-1] / ticks[0] >= 5:
        axis.set_xscale("log", base=2)
        axis.xaxis.set_minor_formatter(NullFormatter())
    if len(ticks) <= 6:
        axis.set_xticks(ticks, [f"{value:g}" for value in ticks])


def _scaled(number: Measured) -> tuple[float, float | None, float | None]:
    factor = 100.0 if number.rate else 1.0
    low, high = (None if end is None else factor * end for end in (number.low, number.high))
    return factor * (number.mean or 0.0), low, high


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def draw_wins(page: Page) -> Figure:
    """Tasks won, two bars per budget (LAVa, Figure 5). Raises NothingSelected if nobody has won or lost."""
    wins = page.item.layout.wins
    heights: dict[tuple[tuple[str, str], str], dict[tuple[str, str], float]] = {}
    for number in page.numbers:
        values = dict(zip(page.item.keys, number.at, strict=True))
        pair = next((pair for pair in wins if values["policy"] in pair), None)
        if pair is None:
            continue
        bar = values["budget"], values["policy"]
        if number.ours is not None and number.ours.mean is not None:
            heights.setdefault((pair, "ours"), {})[bar] = number.ours.mean
        if number.published is not None:
            heights.setdefault((pair, "published"), {})[bar] = float(number.published.value)
    if not heights:
        raise NothingSelected(f"{page.item.name} has no numbers to draw")
    order = sorted(heights, key=lambda key: (wins.index(key[0]), key[1]))
    labels = names_of(page.item)
    titles = [f"{labels.get(a, a)} against {labels.get(b, b)}, {source}" for (a, b), source in order]
    styles: dict[tuple[tuple[str, str], int], dict[str, Any]] = {
        (pair, side): {"color": looks(pair)[pair[side]].colour, "hatch": HATCHES[side], "edgecolor": "white"}
        for pair in wins
        for side in (0, 1)
    }
    figure, axes = panels(titles, "\n".join((page.item.title, *page.head)), columns=2, sharey=False)
    for axis, key in zip(axes, order, strict=True):
        budgets = sorted({budget for budget, _ in heights[key]}, key=budget_key)
        for side, policy in enumerate(key[0]):
            tops = [heights[key].get((budget, policy), 0) for budget in budgets]
            xs = [place + 0.4 * side - 0.2 for place in range(len(budgets))]
            axis.bar_label(axis.bar(xs, tops, width=0.36, **styles[key[0], side]), fmt="%g", fontsize=6.5, padding=1)
        axis.set_xticks(range(len(budgets)), budgets)
        axis.yaxis.set_major_locator(MaxNLocator(5, integer=True))
        label_axes(axis, "budget (KV pairs per head)", "tasks won")
        axis.margins(y=0.12)
        axis.grid(visible=False, axis="x")
    handles = [
        Patch(
            facecolor=style["color"], hatch=style["hatch"], edgecolor="white", label=labels.get(pair[side], pair[side])
        )
        for (pair, side), style in styles.items()
    ]
    figure.legend(handles=handles, loc="upper left", bbox_to_anchor=(1, 0.9))
    return figure
