"""`kvbench report plot needle`: depth of the needle against context length, one heat map per policy and budget."""

from dataclasses import replace

import numpy as np
from matplotlib.figure import Figure

from kvbench.report.experiments import Experiments
from kvbench.report.plots.canvas import titles
from kvbench.report.plots.heat_maps import Grid, draw_heat_maps
from kvbench.report.plots.plot import Request, measured_of, methods_of, metric_of, scaled
from kvbench.report.rows import describer
from kvbench.report.selection import NothingSelected, task_settings
from kvbench.support.errors import UserError
from kvbench.support.grouped import grouped

DEPTH = "task.depth"


def draw(request: Request) -> Figure:
    """Small multiples over models, tasks, policies, scores and budgets; hatched if nothing was measured."""
    cells, describe = request.cells(), describer(request.source)
    settings = {cell.cell: task_settings(describe(cell.cell)) for cell in cells}
    depths = {name: float(task["depth"]) for name, task in settings.items() if task.get("depth") is not None}
    deep = [cell for cell in cells if cell.cell in depths]
    if not deep:
        raise NothingSelected(
            f"none of {len(cells)} cells has a {DEPTH}: a heat map needs a task with depths, such as task=needle"
        )
    if len(deep) < len(cells):
        request.warn(f"{len(cells) - len(deep)} of {len(cells)} cells have no {DEPTH} and are left out")
    top = 100.0 if all(cell.rate for cell in deep) else None
    if top and request.settings.get("unit") == "rate":  # 0..1, as some papers print it
        top, deep = 1.0, [replace(cell, rate=False) for cell in deep]
    rows = sorted({depths[cell.cell] for cell in deep})
    columns = sorted({cell.context_length or 0 for cell in deep})
    experiments = Experiments(("context_length", DEPTH), describe)
    maps = {cell.cell: (cell.model, cell.task, cell.policy, cell.score, cell.budget) for cell in deep}
    words = experiments.told_apart(maps)
    methods = grouped(deep, lambda cell: (*maps[cell.cell], words[cell.cell]))
    keys, means, numbers = [], [], []
    for (model, task, policy, score, budget, setting), members in methods.items():
        budget = None if policy == "full" else budget
        keys.append({"model": model, "task": task, "policy": policy, "score": score, "budget": budget})
        keys[-1] |= {"setting": setting} if any(words.values()) else {}
        grid = np.full((len(rows), len(columns)), np.nan)
        for cell in members:
            place = rows.index(depths[cell.cell]), columns.index(cell.context_length or 0)
            if not np.isnan(grid[place]):
                raise UserError(
                    f"two cells at depth {depths[cell.cell]:g} and {cell.context_length} tokens: {cell.policy} "
                    f"{cell.score} {cell.budget}, one is {cell.cell}; select one of them: seed=... variant=... or "
                    "cell=..."
                )
            grid[place] = scaled(cell, cell.mean)
        numbers.append(grid)
        some = f" of {len(members)} squares" if len(members) < grid.size else ""
        means.append(f"mean{some} {np.nanmean(grid):.3g}")  # each square with the same weight, as maps are quoted
    common, panel_titles = titles(keys)
    return draw_heat_maps(
        heading=f"{common}\n{measured_of(deep, intervals=False)}{request.unsaid_settings(methods_of(deep))}",
        grids=[
            Grid(f"{title}\n{mean}", grid, [f"{row:g}" for row in rows], columns)
            for title, mean, grid in zip(panel_titles, means, numbers, strict=True)
        ],
        row="depth of the needle (%)",
        column="context (tokens)",
        size=(0.9 + max(0.3 * len(columns), 1.4), 0.75 + max(0.2 * len(rows), 1.2)),
        limits=(0 if top else None, top),
        label=metric_of(deep),
        most_ticks=(10, 10),
        same_axes=True,
        is_hatched=True,
    )
