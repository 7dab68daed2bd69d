"""Plots of a probe's numbers: a heat map of layers and heads, or means with intervals against layer or window."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from kvbench.extras.probes.table import Mean, means_of
from kvbench.report.plots import canvas
from kvbench.report.plots.curves import Panel, Trace, draw_curves
from kvbench.report.plots.heat_maps import Grid, draw_heat_maps
from kvbench.support.errors import UserError
from kvbench.support.grouped import grouped

_CELL = ("policy", "score", "budget")


def draw_probed(
    numbers: pa.Table, by: Sequence[str], out: Path, stamp: str = "", percent: bool = False, note: str = ""
) -> None:
    """Draw `figure` into a file (PDF, PNG or SVG, by its suffix); ``stamp`` is a word for its corner."""
    drawn = figure(numbers, by, percent, note)
    with canvas.styled():
        canvas.save(canvas.stamped(drawn, stamp) if stamp else drawn, out)


def figure(numbers: pa.Table, by: Sequence[str], percent: bool = False, note: str = "") -> Figure:
    """Return the means of `kvbench.extras.probes.table` as a figure.

    Grouped by layer and head they are heat maps, one per cell; otherwise one line per cell over windows or over layers.
    ``note`` is a line of the heading; ``percent``: shares x100. Raises ValueError if there is nothing to draw.
    """
    means = [mean for mean in means_of(numbers, by, percent) if mean.mean is not None]
    if not means:
        raise UserError("there are no numbers to draw")
    with canvas.styled():
        return _heat_maps(means, note) if "head" in by and "layer" in by else _curves(means, note)


def _heat_maps(means: Sequence[Mean], note: str) -> Figure:
    """Layers from top to bottom, heads from left to right, each panel with its own scale."""
    names = ("model", "task", "context_length", "policy", "score", "budget", "quantity")
    grids = grouped(means, lambda mean: tuple(mean.keys[name] for name in names))
    common, panel_titles = canvas.titles([dict(zip(names, key, strict=True)) for key in grids])
    layers, heads = (sorted({mean.keys[name] for mean in means}) for name in ("layer", "head"))
    numbers = []
    for members in grids.values():
        grid = np.full((len(layers), len(heads)), np.nan)
        for mean in members:
            grid[layers.index(mean.keys["layer"]), heads.index(mean.keys["head"])] = mean.mean
        numbers.append(grid)
    return draw_heat_maps(
        heading=f"{means[0].keys['probe']}, {common}\n{_samples(means)}" + f"\n{note}" * bool(note),
        grids=[Grid(title, grid, layers, heads) for title, grid in zip(panel_titles, numbers, strict=True)],
        row="layer",
        column="KV head",
        size=(1.3 + max(0.3 * len(heads), 1.2), 0.85 + max(0.16 * len(layers), 0.9)),
    )


def _curves(means: Sequence[Mean], note: str) -> Figure:
    """Return one panel per quantity, number of recent tokens and model; one line per policy, score and budget."""
    first = means[0].keys
    x = next((name for name in ("window", "layer") if name in first), None)
    if x is None:
        raise UserError("a picture needs --by window, --by layer or --by layer,head")

    def cell_of(mean: Mean) -> tuple[Any, ...]:
        return tuple(mean.keys[name] for name in _CELL)

    names = [name for name in ("model", "task", "context_length", "quantity", "recent", "head") if name in first]
    groups = grouped(means, lambda mean: tuple(mean.keys[name] for name in names))
    common, panel_titles = canvas.titles([dict(zip(names, key, strict=True)) for key in groups])
    cells = list(dict.fromkeys(map(cell_of, means)))
    common_of_cells, _ = canvas.titles([dict(zip(_CELL, cell, strict=True)) for cell in cells])
    scores, budgets = (canvas.titles([{name: cell[i]} for cell in cells])[1] for i, name in enumerate(_CELL) if i)
    labels = {
        cell: (str(cell[0]), " ".join(filter(None, rest))) for cell, *rest in zip(cells, scores, budgets, strict=True)
    }
    marks = canvas.Marks.over(labels.values())
    bars = ", bars are 95 % intervals" * any(mean.low is not None for mean in means)

    def trace(cell: tuple[Any, ...], members: Sequence[Mean]) -> Trace:
        style = marks.of(labels[cell]) | ({} if len(cells) > 1 else {"label": "_"})
        points = ((mean.keys[x], mean.mean or 0.0, mean.low, mean.high) for mean in members)
        return Trace(sorted(points, key=lambda point: point[0]), style, intervals="bars")

    heading = f"{first['probe']}, {', '.join(filter(None, (common, common_of_cells)))}\n{_samples(means)}{bars}"
    return draw_curves(
        heading=heading + f"\n{note}" * bool(note),
        panels=[
            Panel(
                title,
                [trace(cell, points) for cell, points in grouped(members, cell_of).items()],
                "queries in the window" if x == "window" else "layer",
                str(members[0].keys["quantity"]),
            )
            for title, members in zip(panel_titles, groups.values(), strict=True)
        ],
        labels=marks.names if len(cells) > 1 else (),
        scale=_scale_windows if x == "window" else lambda axes: None,
        sharey=len({mean.keys["quantity"] for mean in means}) == 1,
    )


def _scale_windows(axes: Sequence[Axes]) -> None:
    for axis in axes:
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.xaxis.set_minor_formatter(NullFormatter())


def _samples(means: Sequence[Mean]) -> str:
    counts = {mean.n for mean in means}
    return "means of " * (max(counts) > 1) + canvas.n_of(counts)
