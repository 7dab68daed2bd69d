"""Line plots: panels of traces, and one function that draws them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kvbench.report.plots.canvas import Point, label_axes, label_ends
from kvbench.report.plots.canvas import panels as panels_of


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
    label_ends(figure, axes)
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
