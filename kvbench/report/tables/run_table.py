"""The table that a run ends with: one figure per cell, by policy, score and budget."""

from collections.abc import Callable, Sequence

import pyarrow as pa

from kvbench.records.lines import Warn
from kvbench.records.rows import Describe
from kvbench.report.formats.table import Report
from kvbench.report.frames import Source
from kvbench.report.rows import describer, load_table
from kvbench.report.selection import Where
from kvbench.report.stats.paired import TIMED
from kvbench.report.tables.means import means_table
from kvbench.report.tables.pivot import arrange
from kvbench.report.tables.summary import NEEDED, Summary, summaries

RowsOf = Callable[[Sequence[str]], pa.Table]
"""Reads these columns of the rows of a run."""
WIDTH = 100
"""Columns of text that does not go to a terminal."""


def report_of(source: Source, warn: Warn, where: Where | None = None, rows: RowsOf | None = None) -> Report:
    """Return the table of rows that `rows` reads, or all that `where` selects. Raises as `load_table`."""
    cells = summaries(load_table(source, NEEDED, warn, where) if rows is None else rows(NEEDED))
    describe = describer(source)
    tables = tuple(means_table(block, describe) for block in arrange(cells, describe=describe))
    return Report(warnings=warnings_of(cells, describe), tables=tables, width=WIDTH)


def warnings_of(cells: Sequence[Summary], describe: Describe) -> tuple[str, ...]:
    """Return a warning if anything but time was measured on random weights: their answers mean nothing."""
    cell_of = {cell.model: cell.cell for cell in cells if cell.metric != TIMED}
    parts = {model: (describe(cell) or {}).get("model") for model, cell in cell_of.items()}
    models = ", ".join(model for model, part in parts.items() if isinstance(part, dict) and part.get("shape"))
    text = f"warning: random weights ({models}): accuracy is meaningless here; time and memory are valid"
    return (text,) if models else ()
