"""`kvbench report plot tradeoff`: quality of the answers against the size of the cache, one line per policy and score.

x is measured, not the requested budget: the share of KV pairs kept, KV pairs per head, bytes held, or bytes that a
token of the answer reads (x=read: keys, values and what a reader reads to choose them). x=question: the number of the
question about a context, or of the turn, with a line for each budget.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from kvbench.report.plots.canvas import REFERENCE, Marks, Point, titles
from kvbench.report.plots.curves import Panel, Trace, draw_curves
from kvbench.report.plots.plot import Request, cells_of, label_of, marks_of, measured_of, methods_of, metric_of, scaled
from kvbench.report.selection import NothingSelected
from kvbench.report.tables.pivot import COLUMNS, LINES, Block
from kvbench.report.tables.summary import Summary
from kvbench.support.quantity import size

MOST_LINES = 10  # in one panel; beyond, every policy has its own, the others grey behind it
PERCENT = (-4, 104)
"""An axis of rates, the same in all figures."""
MOST_TICKS = 8
LABEL_WIDTH = 0.12  # of a tick, as a share of a narrow panel


def _read(cell: Summary) -> float | None:
    return None if cell.read_bytes is None else cell.read_bytes + (cell.index_bytes or 0)


_IN_BYTES = ("bytes", "read")
_AXES: Mapping[str, tuple[str, Callable[[Summary], float | None]]] = {
    "fraction": ("pairs kept", lambda cell: None if cell.kept_fraction is None else 100 * cell.kept_fraction),
    "pairs": ("KV pairs kept per head", lambda cell: cell.kept_tokens),
    "bytes": ("bytes held", lambda cell: cell.held_bytes),
    "read": ("bytes read by a token of the answer", _read),
    "question": ("question", lambda cell: cell.question_number),
}


def draw(request: Request) -> Figure:
    """Small multiples over models, tasks and lengths. Raises as `Request.cells` does."""
    x = request.settings.get("x", "fraction")
    blocks = request.blocks((*LINES, *COLUMNS), ("question_number",)) if x == "question" else request.blocks()
    crowded = max(len(block.lines) for block in blocks) > MOST_LINES
    marks, cells = marks_of(blocks, crowded), cells_of(blocks)
    places: list[tuple[Block, str | None]] = [(block, None) for block in blocks]
    if crowded:
        places = [(block, policy) for block in blocks for policy in marks_of([block]).policies]
    common, panel_titles = titles([block.title | ({"policy": policy} if policy else {}) for block, policy in places])
    if all(_AXES[x][1](cell) is None for cell in cells):
        raise NothingSelected(f"no selected row says x={x}: the run that wrote them did not measure it")
    intervals = request.settings.get("intervals") != "no"
    note = measured_of(cells, intervals) + "; grey: the other policies" * (crowded and len(marks.policies) > 1)
    panels = [
        Panel(title, list(_traces(block, policy, marks, x, intervals)), _AXES[x][0], metric_of(cells))
        for title, (block, policy) in zip(panel_titles, places, strict=True)
    ]
    xs = [point[0] for panel in panels for trace in panel.traces if not trace.is_level for point in trace.points]

    def scale(axes: Sequence[Axes]) -> None:
        _scale(axes[0], x, xs)
        if all(cell.rate for cell in cells):
            axes[0].set_ylim(PERCENT)

    return draw_curves(
        heading=f"{common}\n{note}{request.left_out}{request.unsaid_settings(methods_of(cells))}",
        panels=panels,
        labels=[*marks.names, str(REFERENCE["label"])],
        scale=scale,
        sharey=True,
        sharex=True,
    )


def _traces(block: Block, policy: str | None, marks: Marks, x: str, intervals: bool) -> Iterator[Trace]:
    """Yield the lines of a panel; grey for lines of another policy than the panel's, if it has one."""
    _, measure = _AXES[x]
    for line in block.lines:
        cells = sorted({id(cell): cell for cell in line.cells.values()}.values(), key=lambda cell: measure(cell) or 0.0)
        if line.reference:
            style = {"zorder": 1, **REFERENCE}
            points: list[Point] = [(measure(cell) or 0, scaled(cell, cell.mean), None, None) for cell in cells]
            lines = [points] if x == "question" else [[point] for point in points]
            yield from (Trace(members, style, is_level=x != "question") for members in lines)
            continue
        is_behind = policy is not None and label_of(line)[0] != policy
        points = []
        for cell in cells:
            if (value := measure(cell)) is not None:
                ends = (cell.low, cell.high) if intervals and not is_behind else (None, None)
                low, high = (None if end is None else scaled(cell, end) for end in ends)
                points.append((value, scaled(cell, cell.mean), low, high))
        grey = {"color": "#cccccc", "linewidth": 0.8, "zorder": 1}
        yield Trace(points, grey if is_behind else {"zorder": 3, **marks.of(label_of(line))})


def _apart(values: Sequence[float], factor: float) -> list[float]:
    """Return, from the largest, the values that are smaller than the last one by more than a factor."""
    apart: list[float] = []
    for value in sorted(values, reverse=True):
        if not apart or factor * value < apart[-1]:
            apart.append(value)
    return apart


def _scale(axis: Axes, x: str, xs: Sequence[float]) -> None:
    """Set a logarithmic axis, as budgets double, and units on the ticks."""
    if x == "question":
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        return
    if xs and min(xs) > 0:
        axis.set_xscale("log", base=2)
        ticks = _apart(xs, 1.1)  # the same budget keeps slightly different shares of different tasks
        if len(ticks) <= MOST_TICKS:
            axis.set_xticks(_apart(ticks, max(1.1, (max(xs) / min(xs)) ** LABEL_WIDTH)))
        else:
            base, subs = (10, (1, 2, 5)) if x == "fraction" else (2, (1,))
            axis.xaxis.set_major_locator(LogLocator(base, subs, numticks=5 if x in _IN_BYTES else 8))
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.minorticks_off()
    words: Mapping[str, Callable[[float, int], str]] = {
        "fraction": lambda value, _: f"{round(value, 1):g} %",
        "pairs": lambda value, _: f"{value:.3g}" if value < 1000 else f"{value:.0f}",
        **dict.fromkeys(_IN_BYTES, lambda value, _: size([value])),
    }
    axis.xaxis.set_major_formatter(FuncFormatter(words[x]))
