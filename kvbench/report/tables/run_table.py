"""The table that a run ends with: one figure per cell, by policy, score and budget."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

import pyarrow as pa

from kvbench.records.rows import Describe, describer_of
from kvbench.report.formats.emit import write_report
from kvbench.report.formats.table import Report
from kvbench.report.stats.paired import TIMED
from kvbench.report.tables.means import means_table
from kvbench.report.tables.pivot import arrange
from kvbench.report.tables.summary import Summary, summaries

WIDTH = 100
"""Columns of text that does not go to a terminal."""


def print_table_of(rows: pa.Table, folder: str | os.PathLike[str], out: TextIO) -> None:
    """Write the table of the rows of a run, which were read from `folder` already, as text."""
    cells, describe = summaries(rows), describer_of(Path(folder))
    tables = tuple(means_table(block, describe) for block in arrange(cells, describe=describe))
    write_report(Report(warnings=warnings_of(cells, describe), tables=tables, width=WIDTH), "text", out)


def warnings_of(cells: Sequence[Summary], describe: Describe) -> tuple[str, ...]:
    """Return a warning if anything but time was measured on random weights: their answers mean nothing."""
    cell_of = {cell.model: cell.cell for cell in cells if cell.metric != TIMED}
    parts = {model: (describe(cell) or {}).get("model") for model, cell in cell_of.items()}
    models = ", ".join(model for model, part in parts.items() if isinstance(part, dict) and part.get("shape"))
    text = f"warning: random weights ({models}): accuracy is meaningless here; time and memory are valid"
    return (text,) if models else ()
