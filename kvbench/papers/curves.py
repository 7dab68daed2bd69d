"""A paper's figure from the numbers of its page: ours and the published ones in panels side by side."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullFormatter

from kvbench.papers.measured import Measured
from kvbench.papers.page import Page
from kvbench.papers.published import AVERAGE
from kvbench.report.plots.canvas import COLOURS, DASHES, MARKERS, REFERENCE, is_first, legend_at, panels
from kvbench.report.selection import NothingSelected

Point = tuple[float, float, float | None, float | None]
MOST = 24
"""Panels that a picture has at most."""


def draw_curves(page: Page) -> Figure:
    """Means with intervals against the item's x. Raises NothingSelected where no place has a number.

    More panels than anybody can look at: the first ones are drawn, and the heading says so.
    """
    lines: dict[tuple[str, str], dict[tuple[str, ...], list[Point]]] = {}
    for at, ours, theirs, _ in page.numbers:
        keyed = dict(zip(page.item.keys, at, strict=True))
        x = _number(keyed[page.item.layout.x or "budget"])
        if AVERAGE in at or x is None:
            continue
        panel = ", ".join(
            f"{keyed[key]} tokens" if key == "context_length" else keyed[key] for key in page.item.layout.panels
        )
        line = tuple(keyed[key] for key in page.item.layout.rows if key not in page.item.layout.panels)
        if ours is not None and ours.mean is not None:
            lines.setdefault((panel, "ours"), {}).setdefault(line, []).append((x, *_scaled(ours)))
        value = None if theirs is None else _number(theirs.value)
        if value is not None:
            lines.setdefault((panel, "published"), {}).setdefault(line, []).append((x, value, None, None))
    if not lines:
        raise NothingSelected(f"{page.item.name} has no numbers to draw")
    shown = sorted(lines, key=lambda key: (list(dict.fromkeys(panel for panel, _ in lines)).index(key[0]), key[1]))
    rest = f"; {len(shown) - MOST} more panels are not drawn" if len(shown) > MOST else ""
    titles = [", ".join(part for part in key if part) for key in shown[:MOST]]
    figure, axes = panels(titles, "\n".join(page.head) + rest, columns=2, sharey=False, margin=1.9)
    names = list(dict.fromkeys(line for found in lines.values() for line in found))
    marks = _marks(names)
    for axis, key in zip(axes, shown, strict=False):
        _panel(axis, lines[key], marks, key[1] == "ours" and _unit(page) == "mean (%)")
        axis.set_xlabel((page.item.layout.x or "budget").replace("_", " "))
        axis.set_ylabel(_unit(page) if is_first(axis) else "")
    labels = [" ".join(dict.fromkeys(part for part in line if part)) for line in names]
    handles = [Line2D([], [], label=label, **marks[line]) for label, line in zip(labels, names, strict=True)]
    figure.legend(handles=handles, handlelength=2.6, **legend_at(figure, 1.9, below=True))
    return figure


def _unit(page: Page) -> str:
    """What the numbers are, in words for an axis."""
    rates = [ours.rate for _, ours, _, _ in page.numbers if ours is not None]
    units = {theirs.unit for _, _, theirs, _ in page.numbers if theirs is not None} - {"percent"}
    return next(iter(units), "mean (%)" if all(rates) else "mean")


def _marks(names: Sequence[tuple[str, ...]]) -> Mapping[tuple[str, ...], dict[str, Any]]:
    """The same policy the same colour, the same rest the same dash, no two lines the same marker and dash; the full
    cache grey. Markers get smaller from line to line, so that none hides another.
    """
    firsts = list(dict.fromkeys(name[0] for name in names if "full" not in name))
    others = list(dict.fromkeys(name[1:] for name in names if "full" not in name))
    marks = {}
    for name in names:
        if "full" in name:
            marks[name] = {**REFERENCE, "marker": "."}
            continue
        first, other = firsts.index(name[0]), others.index(name[1:])
        marks[name] = {
            "color": COLOURS[first % len(COLOURS)],
            "marker": MARKERS[(2 * first + other) % len(MARKERS)],
            "linestyle": DASHES[other % len(DASHES)],
            "markersize": max(3.0, 7.5 - 0.7 * len(marks)),
        }
    return marks


def _panel(
    axis: Axes, found: Mapping[tuple[str, ...], list[Point]], marks: Mapping[tuple[str, ...], Any], percent: bool
) -> None:
    level = {line for line, points in found.items() if "full" in line and len(points) == 1}
    seen = sorted({point[0] for line, points in found.items() if line not in level for point in points})
    for line, points in found.items():
        if line in level:
            axis.axhline(points[0][1], zorder=1, **REFERENCE)
            continue
        points.sort(key=lambda point: point[0])
        axis.plot([point[0] for point in points], [point[1] for point in points], zorder=3, **marks[line])
        known = [(x, low, high) for x, _, low, high in points if low is not None and high is not None]
        if known:
            xs, lows, highs = zip(*known, strict=True)
            axis.fill_between(xs, lows, highs, color=marks[line]["color"], alpha=0.1, linewidth=0)
    if percent and len({point[1] for points in found.values() for point in points}) == 1:  # else an axis of tenths
        axis.set_ylim(-3, 105)
    if seen and seen[0] > 0 and seen[-1] / seen[0] >= 5:
        axis.set_xscale("log", base=2)
        axis.xaxis.set_minor_formatter(NullFormatter())
    if len(seen) <= 6:
        axis.set_xticks(seen, [f"{value:g}" for value in seen])


def _scaled(one: Measured) -> tuple[float, float | None, float | None]:
    factor = 100.0 if one.rate else 1.0
    low, high = (None if end is None else factor * end for end in (one.low, one.high))
    return factor * (one.mean or 0.0), low, high


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
