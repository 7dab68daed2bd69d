"""`kvbench report plot bars`: one bar per policy and score with its interval, one panel per budget and task."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kvbench.report.plots.canvas import REFERENCE, Marks, columns_of, has_bottom, panels, room, titles
from kvbench.report.plots.plot import Request, cells_of, label_of, marks_of, measured_of, methods_of, metric_of, scaled
from kvbench.report.tables.pivot import Block, Key, MeansRow
from kvbench.report.tables.summary import Summary
from kvbench.support.errors import UserError

_PLAIN = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
HATCHES = ("", "////", "....", "xxxx", "----", "++++")
MOST_BARS = 40


def draw(request: Request) -> Figure:
    """Small multiples over models, tasks, lengths and budgets.

    Raises as `Request.cells` does, and UserError for more bars in a panel than ``MOST_BARS``.
    """
    blocks = request.blocks()
    places = [(block, column) for block in blocks for column in block.columns]
    common, panel_titles = titles([block.title_of(column) for block, column in places], "\n")
    bars = [_bars(block, column) for block, column in places]
    if (most := max(map(len, bars))) > MOST_BARS:
        raise UserError(f"{most} bars are too many for one panel ({MOST_BARS}); select fewer: policy=... score=...")
    are_equal = len({len(block.columns) for block in blocks}) == 1
    columns = columns_of(len(places), min(len(blocks[0].columns) if are_equal else 3, 4))
    rows = [max(1, *map(len, bars[first : first + columns])) for first in range(0, len(places), columns)]
    cells = cells_of(blocks)
    dashed = "; dashed: the full cache" * any(block.cells(reference=True) for block in blocks)
    figure, axes = panels(
        panel_titles,
        f"{common}\n{measured_of(cells)}{dashed}{request.left_out}{request.unsaid_settings(methods_of(cells))}",
        width=1.5 + room(_name_of(line) for panel_bars in bars for line, _ in panel_bars),
        height=0.6 + 0.2 * sum(rows) / len(rows),
        columns=columns,
        sharex=True,
        height_ratios=[count + 0.2 for count in rows],
    )
    marks = marks_of(blocks)
    top = 1.18 * max(scaled(cell, cell.mean if cell.high is None else cell.high) for cell in cells)
    for i, (axis, (block, _), panel_bars) in enumerate(zip(axes, places, bars, strict=True)):
        _panel(axis, panel_bars, marks)
        for reference in block.cells(reference=True)[:1]:
            axis.axvline(scaled(reference, reference.mean), **REFERENCE)
        axis.set_ylim(rows[i // columns] - 0.4, -0.6)
        axis.set_xlim(0, top or 1)
        axis.set_xlabel(metric_of(cells_of([block])) if has_bottom(axis) else "")
    return figure


def _bars(block: Block, column: Key) -> list[tuple[MeansRow, Summary]]:
    """Return the lines of a panel with their cells: lines without a cell there have no bar and no label."""
    lines = [line for line in block.lines if not line.reference]
    return [(line, line.cells[column]) for line in lines if column in line.cells]


def _panel(axis: Axes, bars: Sequence[tuple[MeansRow, Summary]], marks: Marks) -> None:
    """Bars, each beside its label."""
    for place, (line, cell) in enumerate(bars):
        mean = end = scaled(cell, cell.mean)
        label = label_of(line)
        hatch = "" if marks.alone else HATCHES[marks.turn(label[1]) % len(HATCHES)]
        colour = marks.of(label)["color"]
        axis.barh(place, mean, height=0.72, color=colour, alpha=0.85, hatch=hatch, edgecolor="white")
        if cell.low is not None and cell.high is not None:
            end = scaled(cell, cell.high)
            around = [[mean - scaled(cell, cell.low)], [end - mean]]
            axis.errorbar(mean, place, xerr=around, color="#222222", linewidth=0.8, capsize=2, capthick=0.8)
        axis.annotate(
            f"{mean:.3g}", (end, place), (3, 0), textcoords="offset points", va="center", fontsize=6.5, bbox=_PLAIN
        )
    axis.set_yticks(range(len(bars)), [_name_of(line) for line, _ in bars])
    axis.grid(visible=False, axis="y")


def _name_of(line: MeansRow) -> str:
    """Return all labels."""
    return " ".join(filter(None, dict.fromkeys(label_of(line))))
