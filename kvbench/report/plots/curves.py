"""A line plot as data: panels of traces, what its axes are, and one function that draws it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kvbench.report.plots.canvas import Point, label_axes, label_ends, panels, plot_band


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


@dataclass(frozen=True)
class CurvePlot:
    """Panels under one heading. labels: of the traces, which need room. scale: sets limits and ticks of the axes.

    layout: arguments of `kvbench.report.plots.canvas.panels`.
    """

    heading: str
    panels: Sequence[Panel]
    labels: Sequence[str]
    scale: Callable[[Sequence[Axes]], None]
    layout: Mapping[str, Any] = field(default_factory=dict)


def draw_curves(plot: CurvePlot) -> Figure:
    """Return the figure of a line plot, each trace with its label beside the panel."""
    titles = [panel.title for panel in plot.panels]
    figure, axes = panels(titles, plot.heading, labels=plot.labels, **plot.layout)
    for axis, panel in zip(axes, plot.panels, strict=True):
        for trace in panel.traces:
            _draw(axis, trace)
        label_axes(axis, panel.x, panel.y)
    plot.scale(axes)
    label_ends(figure, axes)
    return figure


def _draw(axis: Axes, trace: Trace) -> None:
    if trace.is_level:
        axis.axhline(trace.points[0][1], **trace.style)
    elif trace.intervals == "band":
        plot_band(axis, trace.points, **trace.style)
    else:
        style = dict(trace.style)
        label = style.pop("label")
        xs, ys = [point[0] for point in trace.points], np.array([point[1] for point in trace.points], float)
        ends = np.array([point[2:] for point in trace.points], float).T  # NaN without an interval
        line, *_ = axis.errorbar(xs, ys, yerr=np.nan_to_num(np.abs(ends - ys)), capsize=2, elinewidth=0.6, **style)
        line.set_label(label)
