"""`kvbench export`: rows and means in the formats of other programs.

eee               a file per model for Every Eval Ever, see `kvbench.extras.export.eee`
github-benchmark  a JSON list of {name, unit, value, range, extra}, as benchmark-action/github-action-benchmark reads
                  it: what=accuracy is its customBiggerIsBetter, what=bytes and what=seconds its customSmallerIsBetter
junit             one suite per task, one test case per cell; a cell with failed samples is an error
markdown, parquet the table and the rows, as `kvbench report` writes them
"""

import json
import os
from pathlib import Path
from typing import TextIO

from kvbench.extras.export.eee import write_eee
from kvbench.records import COLUMNS
from kvbench.records.lines import Warn
from kvbench.report.charts import QUANTITIES, measured, names_of
from kvbench.report.junit import Case, Outcome, junit_xml
from kvbench.report.report_file import check_format, text_to
from kvbench.report.row_formats import print_rows
from kvbench.report.rows import describer, load_table
from kvbench.report.selection import Where
from kvbench.report.tables.summary import NEEDED, Summary, summaries
from kvbench.report.tables.table import print_table
from kvbench.support.errors import UserError
from kvbench.support.grouped import grouped

FORMATS = ("eee", "github-benchmark", "junit", "markdown", "parquet")


def export(
    folder: str | os.PathLike[str],
    format: str,
    out: TextIO | Path,
    quantity: str = "accuracy",
    warn: Warn = lambda text: None,
    where: Where | None = None,
) -> None:
    """Write a results folder, or a Parquet file of rows, in one of `FORMATS`; ``eee`` into a folder."""
    check_format(format, FORMATS)
    if quantity not in QUANTITIES:
        raise UserError(f"what={quantity}: allowed: {', '.join(QUANTITIES)}")
    if format == "eee":
        return write_eee(folder, out, warn, where)
    if format == "parquet":
        return print_rows(folder, "parquet", out, warn, where)
    if format == "markdown":
        return print_table(folder, "markdown", out, warn=warn, where=where)
    cells = summaries(load_table(folder, tuple({*NEEDED} & {*COLUMNS}), warn, where))
    names = names_of([cells], describer(folder))
    if format == "junit":
        tasks = grouped(cells, lambda cell: cell.task)
        cases = {task: [_case(cell, names[cell.cell]) for cell in members] for task, members in tasks.items()}
        text = junit_xml("kvbench", cases)
    else:
        points = (_point(cell, names[cell.cell], quantity) for cell in cells)
        text = json.dumps([*filter(None, points)], indent=2, allow_nan=False) + "\n"
    with text_to(out) as stream:
        stream.write(text)


def _point(cell: Summary, name: str, quantity: str) -> dict[str, object] | None:
    """Return a point of a chart; None if the cell does not have the quantity."""
    value, unit, span = measured(cell, quantity)
    extra = f"n={cell.n} errors={cell.errors} cell={cell.cell}"
    point: dict[str, object] = {"name": name, "unit": unit, "value": value, "range": span, "extra": extra}
    return None if value is None else point


def _case(cell: Summary, name: str) -> Case:
    text = "\n".join(f"{message}: {list(failed)}" for message, failed in cell.failures.items())
    failed = Outcome("error", f"{cell.errors} of {cell.n + cell.errors} samples failed", "samples", text)
    errors = [failed] if cell.errors else []
    value, unit, span = measured(cell, "accuracy")
    return Case(f"kvbench.{cell.task}", name, errors, f"{unit} {value} [{span}] n={cell.n}")
