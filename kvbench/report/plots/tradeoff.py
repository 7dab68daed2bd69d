"""`kvbench report plot tradeoff`: quality of the answers against the size of the cache, one line per policy and score.

x is measured, not the requested budget: the share of KV pairs kept, KV pairs per head, or bytes held.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from kvbench.report.plots.canvas import (
    REFERENCE,
    Marks,
    Point,
    is_first,
    marks_of,
    n_of,
    panels,
    plot_band,
    split,
    titles,
)
from kvbench.report.plots.request import Request
from kvbench.report.stats.metric import higher_is_better
from kvbench.report.tables.pivot import Block, Line
from kvbench.report.tables.summary import Summary
from kvbench.support.quantity import size
from kvbench.support.text import printable

SETTINGS: Mapping[str, tuple[str, ...]] = {"x": ("fraction", "pairs", "bytes"), "intervals": ("yes", "no")}
MOST_LINES = 10  # in one panel; beyond, every policy has its own, the others grey behind it

_AXES: Mapping[str, tuple[str, Callable[[Summary], float | None]]] = {
    "fraction": ("pairs kept", lambda cell: None if cell.kept_fraction is None else 100 * cell.kept_fraction),
    "pairs": ("pairs kept per head", lambda cell: cell.kept_tokens),
    "bytes": ("bytes held", lambda cell: cell.cache_bytes),
}


def draw(request: Request) -> Figure:
    """Small multiples over models, tasks and lengths. Raises as `Request.cells` does."""
    blocks = request.blocks()
    crowded = max(len(block.lines) for block in blocks) > MOST_LINES
    shown = [(block, policy) for block in blocks for policy in (marks_of([block]).policies if crowded else [None])]
    common, panel_titles = titles([block.title | ({"policy": policy} if policy else {}) for block, policy in shown])
    intervals = request.settings.get("intervals") != "no"
    figure, axes = panels(
        panel_titles, f"{common}\n{measured_of(cells_of(blocks), intervals)}", sharey=True, sharex=False
    )
    marks = marks_of(blocks)
    for axis, (block, policy) in zip(axes, shown, strict=True):
        _panel(axis, block, policy, marks, request.settings.get("x", "fraction"), intervals)
        axis.set_ylabel(metric_of(cells_of(blocks)) if is_first(axis) else "")
    marks.legend(figure, blocks[0].line_keys, any(line.reference for block in blocks for line in block.lines))
    return figure


def _panel(axis: Axes, block: Block, policy: str | None, marks: Marks, x: str, intervals: bool) -> None:
    label, measure = _AXES[x]
    drawn_xs: list[float] = []
    for line in block.lines:
        cells = sorted({id(cell): cell for cell in line.cells.values()}.values(), key=lambda cell: measure(cell) or 0.0)
        if line.reference:
            for cell in cells:
                axis.axhline(scaled(cell, cell.mean), zorder=1, **REFERENCE)
            continue
        is_behind = policy is not None and split(line)[0] != policy
        points: list[Point] = []
        for cell in cells:
            if (value := measure(cell)) is not None:
                ends = (cell.low, cell.high) if intervals and not is_behind else (None, None)
                low, high = (None if end is None else scaled(cell, end) for end in ends)
                points.append((value, scaled(cell, cell.mean), low, high))
        drawn_xs += [x for x, *_ in points]
        style = {"color": "#cccccc", "linewidth": 0.8, "zorder": 1} if is_behind else {"zorder": 3, **marks.of(line)}
        plot_band(axis, points, **style)
    _scale(axis, x, drawn_xs)
    axis.set_xlabel(label)


def _scale(axis: Axes, x: str, xs: Sequence[float]) -> None:
    """A logarithmic axis if the budgets are spread widely, and units on the ticks."""
    if xs and min(xs) > 0 and max(xs) / min(xs) >= 5:
        axis.set_xscale("log", base=2)
        ticks = sorted({round(value, 6) for value in xs})
        if all(b / a > 1.25 for a, b in pairwise(ticks)) and len(ticks) <= 8:
            axis.set_xticks(ticks)
        else:
            axis.xaxis.set_major_locator(LogLocator(base=2))
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.minorticks_off()
    elif x == "bytes":  # long labels
        axis.xaxis.set_major_locator(MaxNLocator(nbins=3))
    words: Mapping[str, Callable[[float, int], str]] = {
        "fraction": lambda value, _: f"{round(value, 1):g} %",
        "pairs": lambda value, _: f"{value:.3g}" if value < 1000 else f"{value:.0f}",
        "bytes": lambda value, _: size([value]),
    }
    axis.xaxis.set_major_formatter(FuncFormatter(words[x]))


def scaled(cell: Summary, value: float | None) -> float:
    """A mean in the unit of the figure: rates in %."""
    assert value is not None
    return 100 * value if cell.rate else value


def cells_of(blocks: Sequence[Block]) -> list[Summary]:
    """All cells, with references, once per block."""
    return [cell for block in blocks for reference in (True, False) for cell in block.cells(reference)]


def metric_of(cells: Sequence[Summary]) -> str:
    """The metrics on the axis of means, with their units."""
    return printable(", ".join(dict.fromkeys(f"{cell.metric or 'value'}{' (%)' * cell.rate}" for cell in cells)))


def measured_of(cells: Sequence[Summary], intervals: bool = True) -> str:
    """How many samples the means are over, and what the bands are, if there are any."""
    lower = "" if all(higher_is_better(cell.metric) for cell in cells) else "; lower is better"
    failed = sum(cell.errors for cell in {cell.cell: cell for cell in cells}.values())
    words = f"means of {n_of({cell.n for cell in cells})}" + ", 95 % intervals" * intervals + lower
    return words + (f"; {failed} failed rows are in no mean" if failed else "")


def reference_of(block: Block) -> Line | None:
    """The line of the full cache."""
    return next((line for line in block.lines if line.reference), None)
