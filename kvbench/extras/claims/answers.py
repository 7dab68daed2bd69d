"""The rows that a file of claims looks at: of its cells and its prompts alone."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from kvbench.extras.claims.file import Cell, Claims
from kvbench.records import Row
from kvbench.records.rows import Describe, rows_of
from kvbench.report.compare.paired_rows import Side
from kvbench.report.rows import describer, load_table
from kvbench.report.selection import NothingSelected, select
from kvbench.support.errors import MissingFile, UserError
from kvbench.support.grouped import grouped


@dataclass(frozen=True)
class Answers:
    """The rows of a results folder or a Parquet file, as far as a file of claims asks; table: None without any."""

    claims: Claims
    source: Path
    table: pa.Table | None
    describe: Describe
    _read: dict[str, Side | str] = field(default_factory=dict)

    @classmethod
    def read(cls, claims: Claims, source: Path, warn: Callable[[str], None]) -> "Answers":
        """Raise as `load_table`, but for a folder or a file that is not there or has no rows."""
        try:
            return cls(claims, source, load_table(source, warn=warn), describer(source))
        except MissingFile:
            return cls(claims, source, None, lambda cell: None)

    def of(self, cell: Cell) -> Side | str:
        """Return the rows of a cell, or why there are none.

        Raises UserError where a sample has several rows: conditions must name one cell of each task.
        """
        if cell.key not in self._read:
            self._read[cell.key] = self._side(cell)
        return self._read[cell.key]

    def rows(self, cell: Cell) -> Sequence[Row]:
        """Return the rows of a cell."""
        side = self.of(cell)
        return () if isinstance(side, str) else side.rows

    def _side(self, cell: Cell) -> Side | str:
        if self.table is None:
            return f"{self.source} has no rows"
        try:
            rows = rows_of(select(self.table, cell.where, self.describe, lambda text: None))
        except NothingSelected as error:
            return str(error)
        family = self.claims.families[cell.family]
        rows = [row for row in rows if family.first <= row.sample < family.first + family.samples]
        _check_one_cell(cell, rows)
        return Side(cell.words, rows, str(self.source), self.describe) if rows else "no row of these prompts"


def _check_one_cell(cell: Cell, rows: Sequence[Row]) -> None:
    for task, of_task in grouped(rows, lambda row: row.task).items():
        found = {row.cell for row in of_task}
        if len(found) > 1:
            budgets = sorted({row.budget for row in of_task})
            raise UserError(
                f"{cell.words} of family {cell.family} selects {len(found)} cells of {task}, with budgets "
                f"{', '.join(budgets)}; add conditions that tell them apart, such as budget or a setting: kvbench "
                "report rows shows all"
            )
