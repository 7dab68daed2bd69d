"""`kvbench report plot perplexity`: by position in the text (`curves/*.jsonl`) or by what the cache costs (rows)."""

from collections.abc import Sequence, Set
from dataclasses import replace
from itertools import pairwise

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from kvbench.records import Curve
from kvbench.records.lines import Warn
from kvbench.report.beside import check_lines, lines_beside
from kvbench.report.frames import Source
from kvbench.report.plots import tradeoff
from kvbench.report.plots.canvas import REFERENCE, Point, n_of, titles
from kvbench.report.plots.curves import Panel, Trace, draw_curves
from kvbench.report.plots.plot import Request, cells_of, label_of, marks_of, methods_of
from kvbench.report.selection import NothingSelected
from kvbench.report.stats.intervals import perplexity
from kvbench.report.tables.pivot import Block, Key
from kvbench.support.errors import UserError
from kvbench.support.grouped import grouped


def draw(request: Request) -> Figure:
    """Small multiples over models, tasks, lengths and, by position, budgets; lower is better.

    A point stands at the middle of its range of positions and is exp of the mean nll of all its tokens; with `y=ratio`
    that divided by the full cache's on the same texts, so that what texts have in common is gone. The axis shows all
    points; a band that reaches further is cut off.
    """
    request = replace(request, where={**request.where, "metric": ["nll"]})
    ratio, intervals = request.settings.get("y") == "ratio", request.settings.get("intervals") != "no"
    if request.settings.get("x", "position") != "position":
        if ratio:
            raise UserError("y=ratio needs x=position")
        return tradeoff.draw(request)
    blocks = request.blocks()
    methods = methods_of(cells_of(blocks))
    recorded = read_curves(request.source, {cell for cell, _, _ in methods}, request.warn)
    curves_of = grouped((curve for curve in recorded if curve.metric == "nll"), lambda curve: curve.cell)
    if not curves_of:
        raise NothingSelected("no selected cell has a curve")
    places = [(block, column) for block in blocks for column in block.columns]
    common, panel_titles = titles([block.title_of(column) for block, column in places])
    texts = {len(curves) for curves in curves_of.values()}
    than = "relative to the full cache, " * ratio
    bands = ", 95 % intervals over texts" * (intervals and max(texts) > 1)
    note = f"{than}over all tokens of {n_of(texts, 'text')}{bands}; lower is better{request.left_out}"
    marks = marks_of(blocks)

    def traces(block: Block, column: Key) -> list[Trace]:
        lines = [(line, cell) for line in block.lines if (cell := line.cells.get(column)) is not None]
        full = [curve for line, cell in lines if line.reference for curve in curves_of.get(cell.cell, [])]
        if ratio and not full:
            raise UserError("y=ratio needs the full cache: run policy=full too, and select it")
        return [
            Trace(
                points(against(curves, full) if ratio else curves, intervals),
                {**REFERENCE, "linewidth": 1.2, "zorder": 2}
                if line.reference
                else {**marks.of(label_of(line)), "markersize": 3, "zorder": 3},
            )
            for line, cell in lines
            if (curves := curves_of.get(cell.cell))
        ]

    return draw_curves(
        heading=f"{common}\n{note}{request.unsaid_settings(methods)}",
        panels=[
            Panel(
                title,
                traces(block, column),
                "position in the text (tokens)",
                "perplexity / full cache" if ratio else "perplexity",
            )
            for title, (block, column) in zip(panel_titles, places, strict=True)
        ],
        labels=[*marks.names, str(REFERENCE["label"])],
        scale=_scale,
        sharey=True,
        sharex=True,
    )


def points(curves: Sequence[Curve], intervals: bool = True) -> list[Point]:
    """(position, perplexity, low, high) of every range of positions that has tokens, over the curves of one cell."""
    if len({curve.edges for curve in curves}) > 1:
        raise UserError(
            f"curves of cell {curves[0].cell} have different edges; use one results folder per version of the task"
        )
    points_of_line: list[Point] = []
    for i, (low, high) in enumerate(pairwise(curves[0].edges)):
        parts = [(curve.sums[i] / curve.counts[i], float(curve.counts[i])) for curve in curves if curve.counts[i]]
        if parts:
            middle = float(np.sqrt(max(low, 1) * high)) if high > 2 else float(high)
            mean, lowest, highest = perplexity(*map(list, zip(*parts, strict=True)))
            points_of_line.append((middle, mean, lowest, highest) if intervals else (middle, mean, None, None))
    return points_of_line


def against(curves: Sequence[Curve], full: Sequence[Curve]) -> list[Curve]:
    """Return how much more each text costs than with the full cache, over the texts that both have."""
    of_text = {curve.sample: curve for curve in full}
    differences = []
    for curve in curves:
        if (other := of_text.get(curve.sample)) is None:
            continue
        if (curve.edges, curve.counts) != (other.edges, other.counts):
            raise UserError(f"cell {curve.cell} and the full cache read different tokens of sample {curve.sample}")
        sums = tuple(np.subtract(curve.sums, other.sums).tolist())
        differences.append(replace(curve, sums=sums))
    return differences


def _scale(axes: Sequence[Axes]) -> None:
    """Logarithmic axes that show all points of all panels, and few enough ticks to be read."""
    plain = FuncFormatter(lambda value, _: f"{value:g}")
    for axis in axes:
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.xaxis.set_major_locator(LogLocator(base=2, numticks=7))
        for scale in (axis.xaxis, axis.yaxis):
            scale.set_minor_locator(NullLocator())
            scale.set_major_formatter(plain)
    ys = [y for axis in axes for line in axis.lines for y in np.asarray(line.get_ydata(), float) if np.isfinite(y)]
    low, high = min(ys), max(ys)
    room = max((high / low) ** 0.08, 1.02)
    axes[0].set_ylim(low / room, high * room)
    if high / low < 5:
        axes[0].yaxis.set_major_locator(MaxNLocator(6))
    else:
        subs = (1.0, 2.0, 5.0) if high / low < 1000 else (1.0,)
        axes[0].yaxis.set_major_locator(LogLocator(base=10, subs=subs))


def read_curves(source: Source, cells: Set[str], warn: Warn) -> list[Curve]:
    """Return the curves of these cells, each sample once. Raises MissingFile without any, else as `lines_beside`."""
    check_lines(source, Curve, "only perplexity tasks write them (task=pg19, task=booksum)")
    return [curve for (cell, _), curve in lines_beside(source, Curve, warn).items() if cell in cells]
