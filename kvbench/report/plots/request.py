"""A request for a plot: the folder of the rows, which of them, and the settings of the kind."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvbench.report.rows import describer, load_table
from kvbench.report.selection import NothingSelected, Where
from kvbench.report.tables.pivot import COLUMNS, LINES, Block, arrange
from kvbench.report.tables.summary import NEEDED, Summary, summaries
from kvbench.report.tables.windows import windows


@dataclass(frozen=True)
class Request:
    """``where``: which rows; ``settings``: those of the kind, checked."""

    results: Path
    where: Where
    settings: Mapping[str, str]
    warn: Callable[[str], None]

    def cells(self, by_question: bool = False) -> list[Summary]:
        """The selected cells, or one for each of their questions. Raises NothingSelected if no cell has a value."""
        cells = summaries(load_table(self.results, NEEDED, self.warn, self.where), by_question)
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
        """The selected cells as `kvbench.report.tables.pivot.arrange` lays them out."""
        return arrange(self.cells("question_number" in cols), rows, cols, describer(self.results))

    def windows(self, cells: Iterable[str]) -> str:
        """The line of a heading that says which windows, newest tokens and pooling these cells have, if any has."""
        text = windows(cells, describer(self.results))
        return f"\n{text}" if text else ""
