"""`kvbench report plot perplexity`: by position in the text (`curves/*.jsonl`) or by what the cache costs (rows)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from kvbench.records.curve import Curve
from kvbench.report.curves import read_curves
from kvbench.report.metric import perplexity
from kvbench.report.pivot import Block, Key
from kvbench.report.plots import tradeoff
from kvbench.report.plots.canvas import has_bottom, is_first, panels, titles
from kvbench.report.plots.marks import REFERENCE, Marks, marks_of
from kvbench.report.plots.request import Request
from kvbench.report.where import NothingSelected

SETTINGS: Mapping[str, tuple[str, ...]] = {"x": ("position", "fraction", "pairs", "bytes"), "intervals": ("yes", "no")}

Point = tuple[float, float, float | None, float | None]


def draw(asked: Request) -> Figure:
    """Small multiples over models, tasks, lengths and, by position, budgets; lower is better.

    A point stands at the middle of its range of positions and is exp of the mean nll of all its tokens.
    Raises as `Request.cells` and `kvbench.report.curves.read_curves` do.
    """
    asked = replace(asked, where={**asked.where, "metric": ["nll"]})
    if asked.settings.get("x", "position") != "position":
        return tradeoff.draw(asked)
    blocks = asked.blocks()
    cells = {cell.cell for cell in tradeoff.cells_of(blocks)}
    known: dict[str, list[Curve]] = {}
    for curve in read_curves(asked.results, cells, asked.warn):
        if curve.metric == "nll":
            known.setdefault(curve.cell, []).append(curve)
    if not known:
        raise NothingSelected("no selected cell has a curve")
    shown = [(block, column) for block in blocks for column in block.columns]
    said, own = titles([block.title | dict(zip(block.column_keys, column, strict=True)) for block, column in shown])
    texts = {len(found) for found in known.values()}
    n = f"n = {min(texts)}" + (f" to {max(texts)}" if len(texts) > 1 else "")
    heading = f"{said}\nover all tokens of {n} text{'s' * (max(texts) > 1)}, 95 % intervals over texts; lower is better"
    figure, axes = panels(own, heading, sharey=True, sharex=True)
    marks = marks_of(blocks)
    for axis, (block, column) in zip(axes, shown, strict=True):
        _panel(axis, block, column, known, marks, asked.settings.get("intervals") != "no")
        axis.set_ylabel("perplexity" if is_first(axis) else "")
        axis.set_xlabel("position in the text (tokens)" if has_bottom(axis) else "")
    marks.legend(figure, blocks[0].line_keys, any(line.reference for block in blocks for line in block.lines))
    return figure


def points(found: Sequence[Curve]) -> list[Point]:
    """(position, perplexity, low, high) of every range of positions that has tokens, over the curves of one cell.

    Raises ValueError for curves over different ranges.
    """
    if len({curve.edges for curve in found}) > 1:
        raise ValueError(
            f"curves of cell {found[0].cell} have different edges; keep rows of one task version in a folder"
        )
    made = []
    for i, (low, high) in enumerate(zip(found[0].edges, found[0].edges[1:], strict=False)):
        there = [(curve.sums[i] / curve.counts[i], float(curve.counts[i])) for curve in found if curve.counts[i]]
        if there:
            middle = float(np.sqrt(max(low, 1) * high)) if high > 2 else float(high)
            made.append((middle, *perplexity(*map(list, zip(*there, strict=True)))))
    return made


def _panel(
    axis: Axes, block: Block, column: Key, known: Mapping[str, list[Curve]], marks: Marks, intervals: bool
) -> None:
    for line in block.lines:
        cell = line.cells.get(column)
        if cell is None or cell.cell not in known:
            continue
        drawn = points(known[cell.cell])
        style = {**REFERENCE, "linewidth": 1.2} if line.reference else {**marks.of(line), "markersize": 3}
        axis.plot([x for x, *_ in drawn], [y for _, y, *_ in drawn], zorder=2 if line.reference else 3, **style)
        ends = [(x, low, high) for x, _, low, high in drawn if low is not None and high is not None]
        if intervals and ends:
            xs, lows, highs = zip(*ends, strict=True)
            axis.fill_between(xs, lows, highs, color=style["color"], alpha=0.13, linewidth=0)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.xaxis.set_major_locator(LogLocator(base=2, numticks=7))
    axis.xaxis.set_minor_locator(NullLocator())
    plain = FuncFormatter(lambda value, _: f"{value:g}")
    axis.xaxis.set_major_formatter(plain)
    axis.yaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0)))
    axis.yaxis.set_major_formatter(plain)
    axis.yaxis.set_minor_locator(NullLocator())
