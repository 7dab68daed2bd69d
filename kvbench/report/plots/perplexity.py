"""`kvbench report plot perplexity`: by position in the text (`curves/*.jsonl`) or by what the cache costs (rows)."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from kvbench.records import Curve, read_sidecar
from kvbench.report.plots import tradeoff
from kvbench.report.plots.canvas import (
    REFERENCE,
    Marks,
    Point,
    label_axes,
    label_ends,
    marks_of,
    n_of,
    panels,
    plot_band,
    split,
    titles,
)
from kvbench.report.plots.request import Request
from kvbench.report.rows import Warn
from kvbench.report.selection import NothingSelected
from kvbench.report.stats.intervals import perplexity
from kvbench.report.tables.pivot import Block, Key
from kvbench.support.errors import MissingFile, UserError

SETTINGS: Mapping[str, tuple[str, ...]] = {
    "x": ("position", "fraction", "pairs", "bytes"),
    "y": ("perplexity", "ratio"),
    "intervals": ("yes", "no"),
}


def draw(request: Request) -> Figure:
    """Small multiples over models, tasks, lengths and, by position, budgets; lower is better.

    A point stands at the middle of its range of positions and is exp of the mean nll of all its tokens; with `y=ratio`
    that divided by the full cache's on the same texts, so that what texts have in common is gone. The axis shows all
    points; a band that reaches further is cut off.
    """
    request = replace(request, where={**request.where, "metric": ["nll"]})
    ratio = request.settings.get("y") == "ratio"
    if request.settings.get("x", "position") != "position":
        if ratio:
            raise UserError("y=ratio needs x=position")
        return tradeoff.draw(request)
    blocks = request.blocks()
    cells = {cell.cell for cell in tradeoff.cells_of(blocks)}
    curves_of: dict[str, list[Curve]] = {}
    for curve in read_curves(request.results, cells, request.warn):
        if curve.metric == "nll":
            curves_of.setdefault(curve.cell, []).append(curve)
    if not curves_of:
        raise NothingSelected("no selected cell has a curve")
    shown = [(block, column) for block in blocks for column in block.columns]
    common, panel_titles = titles(
        [block.title | dict(zip(block.column_keys, column, strict=True)) for block, column in shown]
    )
    texts = {len(curves) for curves in curves_of.values()}
    bands = ", 95 % intervals over texts" if request.settings.get("intervals") != "no" and max(texts) > 1 else ""
    than = "relative to the full cache, " * ratio
    heading = (
        f"{common}\n{than}over all tokens of {n_of(texts, 'text')}{bands}; lower is better{request.windows(cells)}"
    )
    marks = marks_of(blocks)
    labels = [*marks.names, str(REFERENCE["label"])]
    figure, axes = panels(panel_titles, heading, labels=labels, sharey=True, sharex=True)
    for axis, (block, column) in zip(axes, shown, strict=True):
        _panel(axis, block, column, curves_of, marks, request.settings.get("intervals") != "no", ratio)
        label_axes(axis, "position in the text (tokens)", "perplexity / full cache" * ratio or "perplexity")
    _scale(axes)
    label_ends(figure, axes)
    return figure


def points(curves: Sequence[Curve]) -> list[Point]:
    """(position, perplexity, low, high) of every range of positions that has tokens, over the curves of one cell."""
    if len({curve.edges for curve in curves}) > 1:
        raise UserError(
            f"curves of cell {curves[0].cell} have different edges; use one results folder per version of the task"
        )
    made = []
    for i, (low, high) in enumerate(pairwise(curves[0].edges)):
        parts = [(curve.sums[i] / curve.counts[i], float(curve.counts[i])) for curve in curves if curve.counts[i]]
        if parts:
            middle = float(np.sqrt(max(low, 1) * high)) if high > 2 else float(high)
            made.append((middle, *perplexity(*map(list, zip(*parts, strict=True)))))
    return made


def against(curves: Sequence[Curve], full: Sequence[Curve]) -> list[Curve]:
    """How much more each text costs than with the full cache, over the texts that both have."""
    of_text = {curve.sample: curve for curve in full}
    made = []
    for curve in curves:
        if (other := of_text.get(curve.sample)) is None:
            continue
        if (curve.edges, curve.counts) != (other.edges, other.counts):
            raise UserError(f"cell {curve.cell} and the full cache read different tokens of sample {curve.sample}")
        excess = (ours - full for ours, full in zip(curve.sums, other.sums, strict=True))
        made.append(replace(curve, sums=tuple(excess)))
    return made


def _panel(
    axis: Axes,
    block: Block,
    column: Key,
    curves_of: Mapping[str, list[Curve]],
    marks: Marks,
    intervals: bool,
    ratio: bool,
) -> None:
    full: list[Curve] = []
    if ratio:
        cells = [line.cells[column] for line in block.lines if line.reference and column in line.cells]
        full = [curve for cell in cells for curve in curves_of.get(cell.cell, [])]
        if not full:
            raise UserError("y=ratio needs the full cache: run policy=full too, and select it")
    for line in block.lines:
        cell = line.cells.get(column)
        if cell is None or cell.cell not in curves_of:
            continue
        drawn = points(against(curves_of[cell.cell], full) if ratio else curves_of[cell.cell])
        style = {**REFERENCE, "linewidth": 1.2} if line.reference else {**marks.of(split(line)), "markersize": 3}
        drawn = drawn if intervals else [(x, y, None, None) for x, y, *_ in drawn]
        plot_band(axis, drawn, zorder=2 if line.reference else 3, **style)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.xaxis.set_major_locator(LogLocator(base=2, numticks=7))
    axis.xaxis.set_minor_locator(NullLocator())
    plain = FuncFormatter(lambda value, _: f"{value:g}")
    axis.xaxis.set_major_formatter(plain)
    axis.yaxis.set_major_formatter(plain)
    axis.yaxis.set_minor_locator(NullLocator())


def _scale(axes: Sequence[Axes]) -> None:
    """All points of all panels, which share their axis, and few enough ticks to be read."""
    ys = [y for axis in axes for line in axis.lines for y in np.asarray(line.get_ydata(), float) if np.isfinite(y)]
    low, high = min(ys), max(ys)
    room = max((high / low) ** 0.08, 1.02)
    axes[0].set_ylim(low / room, high * room)
    if high / low < 5:
        axes[0].yaxis.set_major_locator(MaxNLocator(6))
    else:
        subs = (1.0, 2.0, 5.0) if high / low < 1000 else (1.0,)
        axes[0].yaxis.set_major_locator(LogLocator(base=10, subs=subs))


def read_curves(results: Path, cells: Set[str], warn: Warn) -> list[Curve]:
    """The curves of these cells, each sample once: the one that was written last. Raises MissingFile without any."""
    if not any((results / Curve.folder).glob("*.jsonl")):
        raise MissingFile(
            f"{str(results)!r} has no {Curve.folder}/*.jsonl: only perplexity tasks write them (task=pg19, "
            "task=booksum)"
        )
    curves = read_sidecar(results, Curve, warn)
    return list({(curve.cell, curve.sample): curve for curve in curves if curve.cell in cells}.values())
