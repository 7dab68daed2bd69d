"""Kept sets for a picture: which cells have some, one panel a cell.

`kvbench report plot kept`: where in the text the pairs stood that stayed, a line a stored head, a panel a cell.

`kvbench report plot split`: how a budget was split over layers and heads, a panel a cell.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from kvbench.records import KeptSets, read_kept
from kvbench.report.plots.canvas import has_bottom, is_first, n_of, panels, titles, write_numbers
from kvbench.report.plots.request import Request
from kvbench.report.plots.tradeoff import cells_of
from kvbench.report.selection import NothingSelected
from kvbench.report.tables.summary import Summary
from kvbench.support.errors import MissingFile, UserError


@dataclass(frozen=True)
class Panel:
    """The kept sets of one cell, ordered by sample, all of one shape."""

    cell: Summary
    title: str
    sets: tuple[KeptSets, ...]


def cut_panels(asked: Request, samples: Sequence[int] | None = None) -> tuple[str, list[Panel]]:
    """What the panels have in common, and one for every selected cell that evicts and has kept sets.

    Raises as `Request.cells` and `kvbench.records.read_kept` do, FileNotFoundError where the folder has no kept sets,
    NothingSelected where no set is left, ValueError for a cell whose sets differ in layers or heads.
    """
    blocks = asked.blocks()
    cells = {cell.cell: cell for cell in cells_of(blocks) if cell.policy != "full"}
    known: dict[str, list[KeptSets]] = {}
    if not list((asked.results / "kept").glob("*.jsonl")):
        fix = "record them with `kvbench run ... results.kept=lengths|positions`"
        raise MissingFile(f"{str(asked.results)!r} has no kept/*.jsonl; {fix}")
    for one in read_kept(asked.results, asked.warn).values():
        if one.cell in cells and (samples is None or one.sample in samples):
            known.setdefault(one.cell, []).append(one)
    found = [cell for cell in cells if cell in known]
    if not found:
        raise NothingSelected(f"none of {len(cells)} selected cells has a kept set")
    for cell in found:
        if len({tuple(map(len, one.lengths)) for one in known[cell]}) > 1:
            raise UserError(
                f"cell {cell} has kept sets of different numbers of heads; keep rows of one model in a folder"
            )
    said, own = titles([_title(cells[cell]) for cell in found])
    sets = [tuple(sorted(known[cell], key=lambda one: one.sample)) for cell in found]
    return said, [Panel(cells[cell], title, of) for cell, title, of in zip(found, own, sets, strict=True)]


def _title(cell: Summary) -> Mapping[str, object]:
    return {name: getattr(cell, name) for name in ("model", "task", "context_length", "policy", "score", "budget")}


def counted(panels: Sequence[Panel]) -> str:
    """How many samples the panels are over."""
    counts = {len(panel.sets) for panel in panels}
    if counts == {1}:
        return f"sample {panels[0].sets[0].sample}" if len({p.sets[0].sample for p in panels}) == 1 else "one sample"
    return f"means of {n_of(counts)}"


BINS = 128  # over the text, where it has more positions or several texts lie over each other


def draw_kept(asked: Request) -> Figure:
    """Dark stayed. Several samples lie over each other by their relative position; `sample=0` shows one alone.

    Raises as `kvbench.report.plots.kept_sets.cut_panels` does, and NothingSelected where runs recorded counts only.
    """
    chosen = asked.where.get("sample")
    said, shown = cut_panels(asked, [int(one) for one in chosen if one.isdigit()] if chosen else None)
    shown = [panel for panel in shown if all(one.masks is not None for one in panel.sets)]
    if not shown:
        raise NothingSelected("kept sets hold counts only, no positions: run with results.kept=positions")
    layers = [len(layer) for layer in shown[0].sets[0].lengths]
    most = max(sum(map(len, panel.sets[0].lengths)) for panel in shown)
    heading = f"{said}\npairs that stayed, {counted(shown)}; a line a stored head, layer 0 on top"
    figure, axes = panels(
        [panel.title for panel in shown],
        heading,
        height=0.65 + max(0.06 * most, 0.9),
        margin=0.9,
        sharex=True,
        sharey=True,
    )
    picture = None
    for axis, panel in zip(axes, shown, strict=True):
        shares = stayed(panel)
        picture = axis.imshow(
            shares, aspect="auto", vmin=0, vmax=1, cmap="Greys", extent=(0, 100, len(shares), 0), interpolation="none"
        )
        axis.grid(visible=False)
        for edge in np.cumsum(layers)[:-1]:
            axis.axhline(edge, color="#0072B2", linewidth=0.5)
        axis.set_yticks(np.cumsum(layers) - np.array(layers) / 2, [str(layer) for layer in panel.sets[0].layers])
        axis.set_ylabel("layer" if is_first(axis) else "")
        axis.set_xlabel("position (% of what was read)" if has_bottom(axis) else "")
    width = figure.get_size_inches()[0]
    assert picture is not None
    figure.colorbar(
        picture, cax=figure.add_axes((1 - 0.75 / width, 0.25, 0.12 / width, 0.45)), label="share that stayed"
    )
    return figure


def stayed(panel: Panel) -> np.ndarray:
    """[heads, bins]: the share of pairs that stayed, mean over samples; a bin a position for one short sample."""
    bins = min(BINS, min(one.num_tokens for one in panel.sets))
    if len(panel.sets) == 1 and panel.sets[0].num_tokens <= 4 * BINS:
        bins = panel.sets[0].num_tokens
    heads = []
    for one in panel.sets:
        assert one.masks is not None
        packed = [np.frombuffer(mask, np.uint8) for layer in one.masks for mask in layer]
        masks = np.unpackbits(np.stack(packed), axis=1, count=one.num_tokens).astype(float)
        bounds = np.linspace(0, one.num_tokens, bins + 1).round().astype(int)
        heads.append(np.add.reduceat(masks, bounds[:-1], axis=1) / np.diff(bounds))
    return np.mean(heads, axis=0)


_WRITTEN = 100


def draw_split(asked: Request) -> Figure:
    """Percent of the pairs read that stayed in each stored head; the mean of a layer stands right of it.

    Raises as `kvbench.report.plots.kept_sets.cut_panels` does.
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
            grid[i, layer, : len(lengths)] = np.array(lengths) / one.num_tokens * 100
    return grid.mean(axis=0)
