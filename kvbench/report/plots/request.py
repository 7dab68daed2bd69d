"""A request for a plot, the selected cells, and the words of a figure about them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from kvbench.report.frames import Source
from kvbench.report.plots.canvas import Marks, n_of
from kvbench.report.rows import describer, load_table
from kvbench.report.selection import NothingSelected, Where
from kvbench.report.tables.observation_note import windows
from kvbench.report.tables.pivot import COLUMNS, LINES, Block, MeansRow, arrange
from kvbench.report.tables.summary import NEEDED, Summary, summaries
from kvbench.support.text import printable


@dataclass(frozen=True)
class Request:
    """``source``: the rows; ``where``: which of them; ``settings``: of the kind, checked."""

    source: Source
    where: Where
    settings: Mapping[str, str]
    warn: Callable[[str], None]

    def cells(self, by_question: bool = False) -> list[Summary]:
        """Return selected cells, or one for each of their questions. Raises NothingSelected if no cell has a value."""
        cells = summaries(load_table(self.source, NEEDED, self.warn, self.where), by_question)
        drawn = [cell for cell in cells if cell.mean is not None]
        if not drawn:
            failed = sum(cell.errors for cell in cells)
            raise NothingSelected(
                f"no row of {len(cells)} cells has a value; {failed} failed, see `kvbench report table`"
            )
        if len(drawn) < len(cells):
            self.warn(f"{len(cells) - len(drawn)} of {len(cells)} cells have no value and are left out")
        return drawn

    def blocks(self, rows: Sequence[str] = LINES, cols: Sequence[str] = COLUMNS) -> list[Block]:
        """Return the selected cells as `kvbench.report.tables.pivot.arrange` lays them out."""
        return arrange(self.cells("question_number" in cols), rows, cols, describer(self.source))

    def windows(self, cells: Iterable[str]) -> str:
        """Return the line of a heading that says which windows, newest tokens and pooling these cells have, if any has,
        and which protocol is not `paper`.
        """
        rows = load_table(self.source, ("policy",), lambda text: None, self.where)
        labels = dict(zip(rows["cell"].to_pylist(), rows["policy"].to_pylist(), strict=True))
        text = windows(cells, describer(self.source), labels)
        return f"\n{text}" if text else ""


def cells_of(blocks: Sequence[Block]) -> list[Summary]:
    """Return all cells, with references, once per block."""
    return [cell for block in blocks for reference in (True, False) for cell in block.cells(reference)]


def scaled(cell: Summary, value: float | None) -> float:
    """Return a mean in the unit of the figure: rates in %."""
    assert value is not None
    return 100 * value if cell.rate else value


def metric_of(cells: Sequence[Summary]) -> str:
    """Return the metrics on the axis of means, with their units."""
    return printable(", ".join(dict.fromkeys(f"{cell.metric or 'value'}{' (%)' * cell.rate}" for cell in cells)))


def measured_of(cells: Sequence[Summary], intervals: bool = True) -> str:
    """Return the number of samples behind the means, and the meaning of bands if there are any."""
    lower = "" if all(cell.higher for cell in cells) else "; lower is better"
    failed = sum(cell.errors for cell in {cell.cell: cell for cell in cells}.values())
    intervals = intervals and any(cell.low is not None for cell in cells)
    words = f"means of {n_of({cell.n for cell in cells})}" + ", 95 % intervals" * intervals + lower
    return words + (f"; {failed} failed rows are left out" if failed else "")


def label_of(line: MeansRow) -> tuple[str, str]:
    """Return the first label of a line, its policy, and the others, as text."""
    policy, *others = ("" if label is None else printable(str(label)) for label in line.labels)
    return policy, " ".join(filter(None, others))


def marks_of(blocks: Sequence[Block], alone: bool = False) -> Marks:
    """Return marks for the lines of all blocks, in the order in which they appear."""
    return Marks.over([label_of(line) for block in blocks for line in block.lines if not line.reference], alone)
