"""Heat maps: a grid of numbers for each panel, and one function that draws them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from kvbench.report.plots.canvas import colour_bar, label_axes, panels


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


def draw_heat_maps(
    *,
    heading: str,
    grids: Sequence[Grid],
    row: str,
    column: str,
    size: tuple[float, float],
    limits: tuple[float | None, float | None] | None = None,
    label: str = "",
    most_numbers: int = 150,
    most_ticks: tuple[int, int] = (12, 12),
    same_axes: bool = False,
    is_hatched: bool = False,
) -> Figure:
    """Return the figure of grids. row, column: what they are, as labels of the axes.

    size: inches of a panel. limits: of the colours of all grids, whose meaning is `label`; None: each grid has its own.
    most_numbers: squares of a grid up to which each shows its number. most_ticks: names of rows and of columns that are
    written. same_axes: of all grids, so that they are labelled once. is_hatched: where nothing was measured.
    """
    shared: dict[str, Any] = {"sharex": True, "sharey": True} if same_axes else {}
    titles, margin = [grid.title for grid in grids], 0.3 if limits is None else 0.9
    figure, axes = panels(titles, heading, *size, margin=margin, **shared)
    low, high = limits or (None, None)
    for axis, grid in zip(axes, grids, strict=True):
        if is_hatched:
            axis.set_facecolor("#eeeeee")
            axis.patch.set_hatch("////")
            axis.patch.set_edgecolor("#bbbbbb")
        image = axis.imshow(grid.numbers, aspect="auto", interpolation="none", vmin=low, vmax=high)
        axis.grid(visible=False)
        middle = sum(image.get_clim()) / 2
        for (y, x), value in np.ndenumerate(grid.numbers) if grid.numbers.size <= most_numbers else ():
            if not np.isnan(value):
                colour = "white" if value < middle else "black"
                axis.text(x, y, f"{value:.3g}", ha="center", va="center", color=colour, fontsize=6)
        for y, number in enumerate(grid.margin):
            axis.text(grid.numbers.shape[1] - 0.35, y, f"{number:.3g}", va="center", fontsize=6, color="#333333")
        sides = ((grid.rows, axis.set_yticks), (grid.columns, axis.set_xticks))
        for (names, set_ticks), most in zip(sides, most_ticks, strict=True):
            step = -(-len(names) // most)
            set_ticks(range(0, len(names), step), [str(name) for name in names[::step]])
        label_axes(axis, column, row)
        if limits is None:
            figure.colorbar(image, ax=axis, shrink=0.9)
    if limits is not None:
        colour_bar(figure, axes[-1].images[0], label)
    return figure
