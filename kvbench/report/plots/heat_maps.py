"""Heat maps as data: a grid of numbers for each panel, what its sides are, and one function that draws them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from kvbench.report.plots.canvas import colour_bar, heat_map, label_axes, panels, ticks


@dataclass(frozen=True)
class Grid:
    """A panel: numbers [rows, columns], NaN where nothing was measured, and the names of rows and columns.

    margin: a number at the right of each row.
    """

    title: str
    numbers: np.ndarray[Any, Any]
    rows: Sequence[object]
    columns: Sequence[object]
    margin: Sequence[float] = ()


@dataclass(frozen=True)
class HeatMaps:
    """Grids under one heading. row, column: what they are, as labels of the axes.

    size: inches of a panel. limits: of the colours of all grids, whose meaning is `label`; None: each grid has its own.
    most_numbers: squares of a grid up to which each shows its number. most_ticks: names of rows and of columns that are
    written. same_axes: of all grids, so that they are labelled once. is_hatched: where nothing was measured.
    """

    heading: str
    grids: Sequence[Grid]
    row: str
    column: str
    size: tuple[float, float]
    limits: tuple[float | None, float | None] | None = None
    label: str = ""
    most_numbers: int = 150
    most_ticks: tuple[int, int] = (12, 12)
    same_axes: bool = False
    is_hatched: bool = False


def draw_heat_maps(plot: HeatMaps) -> Figure:
    """Return the figure of heat maps."""
    margin = 0.3 if plot.limits is None else 0.9
    shared: dict[str, Any] = {"sharex": True, "sharey": True} if plot.same_axes else {}
    width, height = plot.size
    titles = [grid.title for grid in plot.grids]
    figure, axes = panels(titles, plot.heading, width=width, height=height, margin=margin, **shared)
    for axis, grid in zip(axes, plot.grids, strict=True):
        image = _draw(axis, grid, plot)
        if plot.limits is None:
            figure.colorbar(image, ax=axis, shrink=0.9)
    if plot.limits is not None:
        colour_bar(figure, axes[-1].images[0], plot.label)
    return figure


def _draw(axis: Axes, grid: Grid, plot: HeatMaps) -> AxesImage:
    if plot.is_hatched:
        axis.set_facecolor("#eeeeee")
        axis.patch.set_hatch("////")
        axis.patch.set_edgecolor("#bbbbbb")
    low, high = plot.limits or (None, None)
    image = heat_map(axis, grid.numbers, plot.most_numbers, vmin=low, vmax=high)
    for row, number in enumerate(grid.margin):
        axis.text(grid.numbers.shape[1] - 0.35, row, f"{number:.3g}", va="center", fontsize=6, color="#333333")
    rows, columns = plot.most_ticks
    axis.set_yticks(*ticks(grid.rows, rows))
    axis.set_xticks(*ticks(grid.columns, columns))
    label_axes(axis, plot.column, plot.row)
    return image
