"""`kvbench report plot split`: how a budget was split over layers and heads, a panel a cell."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from kvbench.report.plots.canvas import is_first, panels, write_numbers
from kvbench.report.plots.heads import Panel, counted, cut_panels
from kvbench.report.plots.request import Request

SETTINGS: Mapping[str, tuple[str, ...]] = {}
_WRITTEN = 100


def draw(asked: Request) -> Figure:
    """Percent of the pairs read that stayed in each stored head; the mean of a layer stands right of it.

    Raises as `kvbench.report.plots.heads.cut_panels` does.
    """
    said, shown = cut_panels(asked)
    grids = [shares(panel) for panel in shown]
    layers, heads = max(len(grid) for grid in grids), max(grid.shape[1] for grid in grids)
    heading = f"{said}\nshare of pairs that stayed in each head (%), {counted(shown)}; right of a layer its mean"
    figure, axes = panels(
        [panel.title for panel in shown],
        heading,
        width=max(1.1 + 0.3 * heads, 2.3),
        height=0.7 + max(0.22 * layers, 0.8),
        margin=0.9,
    )
    top = float(np.nanmax([np.nanmax(grid) for grid in grids]))
    picture = None
    for axis, panel, grid in zip(axes, shown, grids, strict=True):
        picture = axis.imshow(grid, aspect="auto", vmin=0, vmax=top, interpolation="none")
        write_numbers(picture, grid, _WRITTEN)
        means = np.nanmean(grid, axis=1)
        for layer, mean in enumerate(means if layers <= 40 else ()):
            axis.text(grid.shape[1] - 0.35, layer, f"{mean:.3g}", va="center", fontsize=6, color="#333333")
        axis.grid(visible=False)
        axis.set_xticks(range(0, grid.shape[1], -(-grid.shape[1] // 8)))
        step = -(-len(grid) // 16)
        axis.set_yticks(range(0, len(grid), step), [str(layer) for layer in panel.sets[0].layers[::step]])
        axis.set_ylabel("layer" if is_first(axis) else "")
        axis.set_xlabel("stored head")
    width = figure.get_size_inches()[0]
    assert picture is not None
    figure.colorbar(picture, cax=figure.add_axes((1 - 0.75 / width, 0.25, 0.12 / width, 0.45)), label="stayed (%)")
    return figure


def shares(panel: Panel) -> np.ndarray:
    """[layers, heads] in percent, mean over samples; NaN where a layer has fewer heads than another."""
    heads = max(map(len, panel.sets[0].lengths))
    grid = np.full((len(panel.sets), len(panel.sets[0].lengths), heads), np.nan)
    for i, one in enumerate(panel.sets):
        for layer, lengths in enumerate(one.lengths):
            grid[i, layer, : len(lengths)] = np.array(lengths) / one.seen * 100
    return grid.mean(axis=0)
