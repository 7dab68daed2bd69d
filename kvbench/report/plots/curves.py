"""Line plots: panels of traces, and one function that draws them.

Labels stand outside the axes, beside the ends of lines: what is inside and has a colour is data.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.offsetbox import AnnotationBbox, DrawingArea, HPacker, TextArea
from scipy.optimize import isotonic_regression

from kvbench.report.plots.canvas import COINCIDING, HANDLE, LABEL_POINTS, Point, label_axes
from kvbench.report.plots.canvas import panels as panels_of
from kvbench.report.plots.covered import show_covered

LABEL_PLACE = 1.07
"""Where labels begin at the right of a panel, as a share of its width."""
LEADER = {"arrowstyle": "-", "color": "#a0a0a0", "linewidth": 0.4, "relpos": (0, 0.5), "shrinkA": 0, "shrinkB": 0}
"""What leads from a label to the end of its line: thinner than any data, and below it."""


@dataclass(frozen=True)
class Trace:
    """A line of a panel. style: of matplotlib, with its `label`.

    intervals: as a band around the line, or as bars at its points. A level has one point, at whose height it crosses
    the panel.
    """

    points: Sequence[Point]
    style: Mapping[str, Any]
    intervals: str = "band"
    is_level: bool = False


@dataclass(frozen=True)
class Panel:
    """Traces over the same axes, whose labels are x and y. The first traces are drawn first, and may be covered."""

    title: str
    traces: Sequence[Trace]
    x: str
    y: str


def draw_curves(
    heading: str, panels: Sequence[Panel], labels: Sequence[str], scale: Callable[[Sequence[Axes]], None], **layout: Any
) -> Figure:
    """Return the figure of a line plot, each trace with its label beside the panel.

    labels: of the traces, which need room. scale: sets limits and ticks of the axes. layout: arguments of
    `kvbench.report.plots.canvas.panels`.
    """
    figure, axes = panels_of([panel.title for panel in panels], heading, labels=labels, **layout)
    for axis, panel in zip(axes, panels, strict=True):
        for trace in panel.traces:
            _draw(axis, trace)
        label_axes(axis, panel.x, panel.y)
    scale(axes)
    _label_ends(figure, axes)
    return figure


def _draw(axis: Axes, trace: Trace) -> None:
    if trace.is_level:
        axis.axhline(trace.points[0][1], **trace.style)
    elif trace.intervals == "band":
        _draw_band(axis, trace.points, **trace.style)
    else:
        style = dict(trace.style)
        label = style.pop("label")
        xs, ys = [point[0] for point in trace.points], np.array([point[1] for point in trace.points], float)
        ends = np.array([point[2:] for point in trace.points], float).T  # NaN without an interval
        line, *_ = axis.errorbar(xs, ys, yerr=np.nan_to_num(np.abs(ends - ys)), capsize=2, elinewidth=0.6, **style)
        line.set_label(label)


def _draw_band(axis: Axes, points: Sequence[Point], **style: Any) -> None:
    """Draw a line through points, and the band of the intervals that are known; it may reach beyond the axes.

    One point has a marker and a bar in the place of both.
    """
    if len(points) == 1:
        style = {"marker": ".", **style}
    axis.plot([x for x, *_ in points], [y for _, y, *_ in points], **style)
    ends = [(x, low, high) for x, _, low, high in points if low is not None and high is not None]
    if ends:
        xs, lows, highs = zip(*ends, strict=True)
        shown: Artist
        if len(points) == 1:
            shown = axis.vlines(xs, lows, highs, color=style["color"], linewidth=0.7)
        else:
            shown = axis.fill_between(xs, lows, highs, color=style["color"], alpha=0.13, linewidth=0)
        shown.set_in_layout(False)


def _label_ends(figure: Figure, axes: Sequence[Axes]) -> None:
    """Write the label of each line outside the axes, near the height of its end; labels keep apart, and no line moves.

    A panel with rings (`show_covered`) says below what they are.
    """
    figure.draw_without_rendering()
    for axis in axes:
        axis.autoscale(False)  # what comes now marks places, and is no data
    for axis in axes:
        named = [line for line in axis.lines if not str(line.get_label()).startswith("_")]
        lines = [line for line in named if np.isfinite(line.get_xydata()).all(axis=1).any()]
        of_data = [line for line in lines if line.get_transform() == axis.transData]
        has_rings = show_covered(axis, of_data, figure.dpi / 72)
        ends = {}  # equal levels are one
        for line in lines:
            places = line.get_transform().transform(line.get_xydata())
            places = places[np.isfinite(places).all(axis=1)]
            end = axis.transAxes.inverted().transform(places[-1]).round(4).tolist()
            ends[str(line.get_label()), *end] = line, len(places) == 1
        labels: list[tuple[str, list[Line2D], tuple[float, float] | None]]
        labels = [(label, _handle(*shown), (x, y)) for (label, x, y), shown in ends.items()]
        if has_rings:
            labels.append((COINCIDING, _rings(), None))
        gap = LABEL_POINTS * 1.2 / 72 * figure.dpi / axis.bbox.height
        heights = _spread([-1.0 if end is None else end[1] for *_, end in labels], gap)
        for (label, handle, end), height in zip(labels, heights, strict=True):
            _label(axis, label, handle, end, height)


def _label(axis: Axes, label: str, handle: Sequence[Line2D], end: tuple[float, float] | None, height: float) -> None:
    """Draw a label with its handle beside a panel, and a thin grey line to the end of what it names."""
    sample = DrawingArea(HANDLE, LABEL_POINTS)
    for line in handle:
        line.set_transform(sample.get_transform())
        sample.add_artist(line)
    text = TextArea(label, textprops={"fontsize": LABEL_POINTS, "color": "#222222"})
    place = (LABEL_PLACE, height)
    beside = AnnotationBbox(
        HPacker(children=[sample, text], align="center", pad=0, sep=3),
        end or place,
        xybox=place,
        xycoords="axes fraction",
        boxcoords="axes fraction",
        box_alignment=(0, 0.5),
        pad=0,
        frameon=False,
        annotation_clip=False,
        arrowprops=LEADER if end else None,
        zorder=1.6,
    )
    axis.add_artist(beside)


def _handle(line: Line2D, is_point: bool) -> list[Line2D]:
    """Return a short line that looks like another; its marker alone for one point, which no line leads to."""
    sample = Line2D((0, HANDLE / 2, HANDLE), (LABEL_POINTS / 2,) * 3)
    sample.update_from(line)
    sample.set(clip_on=False, linewidth=1, markersize=4, markevery=(1, 3))
    if is_point:
        sample.set_linestyle("none")
    return [sample]


def _rings() -> list[Line2D]:
    """Return two rings around each other."""
    style: dict[str, Any] = {"marker": "o", "markerfacecolor": "white", "markeredgecolor": "#777777"}
    place = ([HANDLE / 2], [LABEL_POINTS / 2])
    return [Line2D(*place, markersize=size, markeredgewidth=0.8, **style) for size in (6.5, 3)]


def _spread(heights: Sequence[float], gap: float) -> list[float]:
    """Return the nearest heights in the same order that are at least ``gap`` apart; in 0..1 if they fit."""
    order = np.argsort(heights, kind="stable")
    gaps, top = gap * np.arange(len(heights)), 1 - gap * (len(heights) - 1)
    nearest = isotonic_regression(np.asarray(heights)[order] - gaps).x
    spread = np.empty(len(heights))
    spread[order] = np.clip(nearest, min(0, top / 2), max(top, top / 2)) + gaps
    return spread.tolist()
