"""`kvbench report plot kept` and `split`: KV pairs kept, and a budget divided over layers and heads."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from kvbench.records import KeptSets
from kvbench.report.beside import check_lines, lines_beside
from kvbench.report.plots.canvas import colour_bar, label_axes, n_of, panels, titles
from kvbench.report.plots.heat_maps import Grid, draw_heat_maps
from kvbench.report.plots.plot import Request, cells_of, methods_of
from kvbench.report.selection import NothingSelected
from kvbench.support.errors import UserError
from kvbench.support.grouped import grouped

BINS = 128
"""Ranges of positions, if a text has more positions or several texts lie over each other."""
_TITLE = ("model", "task", "context_length", "policy", "score", "budget")


class KeptPanel(NamedTuple):
    """The kept sets of one cell by sample, all with the same layers and heads."""

    title: str
    sets: tuple[KeptSets, ...]


def panels_of(request: Request, samples: Sequence[int] | None = None) -> tuple[str, list[KeptPanel]]:
    """Return what the panels have in common, and one panel for every selected cell that evicts and has kept sets.

    Raises MissingFile if the folder has no kept sets, NothingSelected if no set is left.
    """
    cells = {cell.cell: cell for cell in cells_of(request.blocks()) if cell.policy != "full"}
    check_lines(request.source, KeptSets, "record them with `kvbench run ... results.kept=lengths|positions`")
    recorded = lines_beside(request.source, KeptSets, request.warn).values()
    chosen = [kept for kept in recorded if kept.cell in cells and (samples is None or kept.sample in samples)]
    if not chosen:
        raise NothingSelected(f"none of {len(cells)} selected cells has a kept set")
    sets_of = grouped(sorted(chosen, key=lambda kept: kept.sample), lambda kept: kept.cell)
    by_cell = {cell: sets_of[cell] for cell in cells if cell in sets_of}
    for cell, sets in by_cell.items():
        if len({tuple(map(len, kept.lengths)) for kept in sets}) > 1:
            raise UserError(
                f"cell {cell} has kept sets of different numbers of heads; use one results folder per model"
            )
    common, panel_titles = titles([{name: getattr(cells[cell], name) for name in _TITLE} for cell in by_cell])
    common += request.unsaid_settings(methods_of(cells[cell] for cell in by_cell))
    return common, [KeptPanel(title, tuple(sets)) for title, sets in zip(panel_titles, by_cell.values(), strict=True)]


def _samples(panels: Sequence[KeptPanel]) -> str:
    """Return how many samples the panels are over."""
    counts = {len(panel.sets) for panel in panels}
    if counts == {1}:
        numbers = {panel.sets[0].sample for panel in panels}
        return f"sample {numbers.pop()}" if len(numbers) == 1 else "one sample"
    return f"means of {n_of(counts)}"


def draw_kept(request: Request) -> Figure:
    """Return where in the text the kept KV pairs stood: one row per KV head, one panel per cell; dark is kept.

    Several samples lie over each other by their relative position; `sample=0` shows one alone.
    """
    chosen = request.where.get("sample")
    common, shown = panels_of(request, [int(text) for text in chosen if text.isdigit()] if chosen else None)
    shown = [panel for panel in shown if all(kept.masks is not None for kept in panel.sets)]
    if not shown:
        raise NothingSelected("kept sets hold counts only, no positions: run with results.kept=positions")
    return kept_figure(shown, f"{common}\nKV pairs kept, {_samples(shown)}")


def kept_figure(kept_panels: Sequence[KeptPanel], heading: str) -> Figure:
    """Return the figure of `draw_kept` for panels whose kept sets have positions."""
    heads = np.array([len(layer) for layer in kept_panels[0].sets[0].lengths])
    most = max(sum(map(len, panel.sets[0].lengths)) for panel in kept_panels)
    figure, axes = panels(
        [panel.title for panel in kept_panels],
        f"{heading}; one row per KV head, layer 0 at the top",
        height=0.65 + max(0.06 * most, 0.9),
        margin=0.9,
        sharex=True,
        sharey=True,
    )
    for axis, panel in zip(axes, kept_panels, strict=True):
        shares = kept_shares(panel)
        extent = (0, 100, len(shares), 0)
        axis.imshow(shares, aspect="auto", vmin=0, vmax=1, cmap="Greys", extent=extent, interpolation="none")
        axis.grid(visible=False)
        for edge in np.cumsum(heads)[:-1]:
            axis.axhline(edge, color="#0072B2", linewidth=0.5)
        axis.set_yticks(np.cumsum(heads) - heads / 2, [str(layer) for layer in panel.sets[0].layers])
        label_axes(axis, "position (% of the tokens read)", "layer")
    colour_bar(figure, axes[-1].images[0], "share kept")
    return figure


def kept_shares(panel: KeptPanel) -> np.ndarray:
    """[heads, bins]: the share of KV pairs kept, mean over samples; a bin is one position of a single short sample."""
    bins = min(BINS, min(kept.num_tokens for kept in panel.sets))
    if len(panel.sets) == 1 and panel.sets[0].num_tokens <= 4 * BINS:
        bins = panel.sets[0].num_tokens
    heads = []
    for kept in panel.sets:
        assert kept.masks is not None
        packed = [np.frombuffer(mask, np.uint8) for layer in kept.masks for mask in layer]
        masks = np.unpackbits(np.stack(packed), axis=1, count=kept.num_tokens).astype(float)
        bounds = np.linspace(0, kept.num_tokens, bins + 1).round().astype(int)
        heads.append(np.add.reduceat(masks, bounds[:-1], axis=1) / np.diff(bounds))
    return np.mean(heads, axis=0)


def draw_split(request: Request) -> Figure:
    """Return how a budget was divided: percent of the KV pairs kept in each head."""
    common, shown = panels_of(request)
    shares = [head_shares(panel) for panel in shown]
    layers, heads = max(len(grid) for grid in shares), max(grid.shape[1] for grid in shares)
    return draw_heat_maps(
        heading=f"{common}\nKV pairs kept in each head (%), {_samples(shown)}; at the right the mean of each layer",
        grids=[
            Grid(
                panel.title,
                grid,
                panel.sets[0].layers,
                range(grid.shape[1]),
                np.nanmean(grid, axis=1).tolist() if layers <= 40 else (),
            )
            for panel, grid in zip(shown, shares, strict=True)
        ],
        row="layer",
        column="KV head",
        size=(max(1.1 + 0.3 * heads, 2.3), 0.7 + max(0.22 * layers, 0.8)),
        limits=(0, float(np.nanmax([np.nanmax(grid) for grid in shares]))),
        label="kept (%)",
        most_numbers=100,
        most_ticks=(16, 8),
    )


def head_shares(panel: KeptPanel) -> np.ndarray:
    """[layers, heads] in percent, mean over samples; NaN if a layer has fewer heads than another."""
    heads = max(map(len, panel.sets[0].lengths))
    grid = np.full((len(panel.sets), len(panel.sets[0].lengths), heads), np.nan)
    for i, kept in enumerate(panel.sets):
        for layer, lengths in enumerate(kept.lengths):
            grid[i, layer, : len(lengths)] = np.array(lengths) / kept.num_tokens * 100
    return grid.mean(axis=0)
