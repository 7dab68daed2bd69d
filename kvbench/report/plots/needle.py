"""`kvbench report plot needle`: depth of the needle against context length, one heat map per policy and budget."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from kvbench.report.plots.canvas import colour_bar, heat_map, label_axes, panels, ticks, titles
from kvbench.report.plots.request import Request
from kvbench.report.plots.tradeoff import measured_of, metric_of, scaled
from kvbench.report.rows import describer
from kvbench.report.selection import NothingSelected
from kvbench.report.tables.summary import Summary
from kvbench.support.errors import UserError

DEPTH, LENGTH = "task.depth", "context_length"
_MOST_NUMBERS = 150  # squares of a grid up to which each shows its number


def draw(request: Request) -> Figure:
    """Small multiples over models, tasks, policies, scores and budgets; hatched if nothing was measured."""
    cells = request.cells()
    describe = describer(request.results)
    deep = [cell for cell in cells if ((describe(cell.cell) or {}).get("task") or {}).get("depth") is not None]
    if not deep:
        raise NothingSelected(
            f"none of {len(cells)} cells has a {DEPTH}: a heat map needs a task with depths, such as task=needle"
        )
    if len(deep) < len(cells):
        request.warn(f"{len(cells) - len(deep)} of {len(cells)} cells have no {DEPTH} and are left out")
    top = 100.0 if all(cell.rate for cell in deep) else None
    if top and request.settings.get("unit") == "rate":  # 0..1, as some papers print it
        top, deep = 1.0, [replace(cell, rate=False) for cell in deep]
    depths = {cell.cell: float((describe(cell.cell) or {})["task"]["depth"]) for cell in deep}
    grids: dict[tuple, list[Summary]] = {}
    for cell in deep:
        grids.setdefault((cell.model, cell.task, cell.policy, cell.score, cell.budget), []).append(cell)
    names = ("model", "task", "policy", "score", "budget")
    keyed = [dict(zip(names, key, strict=True)) for key in grids]
    common, panel_titles = titles([title | ({"budget": None} if title["policy"] == "full" else {}) for title in keyed])
    rows = sorted({depths[cell.cell] for cell in deep})
    columns = sorted({cell.context_length or 0 for cell in deep})
    squares = len(rows) * len(columns)
    figure, axes = panels(
        [f"{title}\n{_mean(members, squares)}" for title, members in zip(panel_titles, grids.values(), strict=True)],
        f"{common}\n{measured_of(deep, intervals=False)}{request.windows(cell.cell for cell in deep)}",
        width=0.9 + max(0.3 * len(columns), 1.4),
        height=0.75 + max(0.2 * len(rows), 1.2),
        margin=0.9,
        sharex=True,
        sharey=True,
    )
    images = []
    for axis, members in zip(axes, grids.values(), strict=True):
        images.append(_panel(axis, members, depths, rows, columns, top))
        label_axes(axis, "context (tokens)", "depth of the needle (%)")
    colour_bar(figure, images[-1], metric_of(deep))
    return figure


def _panel(
    axis: Axes,
    cells: Sequence[Summary],
    depths: Mapping[str, float],
    rows: Sequence[float],
    columns: Sequence[int],
    top: float | None,
) -> AxesImage:
    grid = np.full((len(rows), len(columns)), np.nan)
    for cell in cells:
        place = rows.index(depths[cell.cell]), columns.index(cell.context_length or 0)
        if not np.isnan(grid[place]):
            raise UserError(
                f"two cells at depth {depths[cell.cell]:g} and {cell.context_length} tokens: {cell.policy} "
                f"{cell.score} {cell.budget}, one is {cell.cell}; select one of them: seed=... variant=... or "
                "cell=..."
            )
        grid[place] = scaled(cell, cell.mean)
    axis.set_facecolor("#eeeeee")
    axis.patch.set_hatch("////")
    axis.patch.set_edgecolor("#bbbbbb")
    image = heat_map(axis, grid, _MOST_NUMBERS, vmin=0 if top else None, vmax=top)
    axis.set_xticks(*ticks(columns, 10))
    axis.set_yticks(*ticks([f"{row:g}" for row in rows], 10))
    return image


def _mean(cells: Sequence[Summary], squares: int) -> str:
    """The mean over all squares, each with the same weight, as heat maps are quoted."""
    some = f" of {len(cells)} squares" if len(cells) < squares else ""
    return f"mean{some} {np.mean([scaled(cell, cell.mean) for cell in cells]):.3g}"
