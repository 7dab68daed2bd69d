"""What a picture is asked to show: where the rows are, which of them, and the settings of its kind."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvbench.report.rows import describer, load_table
from kvbench.report.selection import NothingSelected, Where
from kvbench.report.tables.pivot import COLUMNS, LINES, Block, arrange
from kvbench.report.tables.summary import NEEDED, Summary, summaries


@dataclass(frozen=True)
class Request:
    """``settings``: those of the kind, checked; ``where``: which rows."""

    results: Path
    where: Where
    settings: Mapping[str, str]
    warn: Callable[[str], None]

    def cells(self) -> list[Summary]:
        """The selected cells. Raises NothingSelected where no cell has a value: there is nothing to draw."""
        found = summaries(load_table(self.results, NEEDED, self.warn, self.where))
        drawn = [cell for cell in found if cell.mean is not None]
        if not drawn:
            failed = sum(cell.errors for cell in found)
            raise NothingSelected(
                f"no row of {len(found)} cells has a value; {failed} failed, see `kvbench report table`"
            )
        if len(drawn) < len(found):
            self.warn(f"{len(found) - len(drawn)} of {len(found)} cells have no value and are left out")
        return drawn

    def blocks(self, rows: Sequence[str] = LINES, cols: Sequence[str] = COLUMNS) -> list[Block]:
        """The selected cells as `kvbench.report.tables.pivot.arrange` sets them out."""
        return arrange(self.cells(), rows, cols, describer(self.results))
