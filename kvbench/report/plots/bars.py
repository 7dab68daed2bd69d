"""`kvbench report plot bars`: one bar per policy and score with its interval, one panel per budget and task."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kvbench.report.plots.canvas import REFERENCE, Marks, has_bottom, is_first, panels, room, titles
from kvbench.report.plots.request import Request, cells_of, label_of, marks_of, measured_of, metric_of, scaled
from kvbench.report.tables.pivot import Block, Key, Line
from kvbench.support.errors import UserError

_PLAIN = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
HATCHES = ("", "////", "....", "xxxx", "----", "++++")
MOST_BARS = 40


def draw(request: Request) -> Figure:
    """Small multiples over models, tasks, lengths and budgets.

    Raises as `Request.cells` does, and UserError for more bars in a panel than ``MOST_BARS``.
    """
    blocks = request.blocks()
    shown = [(block, column) for block in blocks for column in block.columns]
    common, panel_titles = titles([block.title_of(column) for block, column in shown], "\n")
    most, lines = max(len(block.lines) for block in blocks), [line for block in blocks for line in block.lines]
    if most > MOST_BARS:
        raise UserError(f"{most} bars are too many for one panel ({MOST_BARS}); select fewer: policy=... score=...")
    columns = min(len(blocks[0].columns) if len({len(block.columns) for block in blocks}) == 1 else 3, 4)
    dashed = "; dashed: the full cache" * any(line.reference for line in lines)
    cells = cells_of(blocks)
    figure, axes = panels(
        panel_titles,
        f"{common}\n{measured_of(cells)}{dashed}{request.windows(cell.cell for cell in cells)}",
        width=1.5 + room(map(_name_of, lines)) / columns,
        height=0.6 + 0.2 * most,
        columns=columns,
        sharex=True,
        sharey=len(blocks) == 1,
    )
    marks = marks_of(blocks)
    top = 1.18 * max(scaled(cell, cell.mean if cell.high is None else cell.high) for cell in cells)
    for axis, (block, column) in zip(axes, shown, strict=True):
        _panel(axis, block, column, marks)
        axis.set_xlim(0, top)
        axis.set_xlabel(metric_of(cells_of([block])) if has_bottom(axis) else "")
        axis.tick_params(labelleft=is_first(axis))
    return figure


def _panel(axis: Axes, block: Block, column: Key, marks: Marks) -> None:
    lines = [line for line in block.lines if not line.reference]
    for place, line in enumerate(lines):
        cell = line.cells.get(column)
        if cell is None or cell.mean is None:
            continue
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
    for reference in block.cells(reference=True)[:1]:
        axis.axvline(scaled(reference, reference.mean), **REFERENCE)
    axis.set_yticks(range(len(lines)), [_name_of(line) for line in lines])
    axis.set_ylim(len(lines) - 0.4, -0.6)
    axis.grid(visible=False, axis="y")


def _name_of(line: Line) -> str:
    """All labels."""
    return " ".join(filter(None, label_of(line)))
