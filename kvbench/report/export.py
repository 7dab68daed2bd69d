"""`kvbench export` and `kvbench report rows`: rows and means in the formats of other programs.

eee               a file per model for Every Eval Ever, see `kvbench.report.eee`
github-benchmark  a JSON list of {name, unit, value, range, extra}, as benchmark-action/github-action-benchmark reads
                  it: what=accuracy is its customBiggerIsBetter, what=bytes and what=seconds its customSmallerIsBetter
junit             one suite per task, one test case per cell; a cell with failed samples is an error
markdown, parquet the table and the rows, as `kvbench report` writes them
"""

import json
import os
import warnings
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TextIO

from kvbench.records import COLUMNS
from kvbench.records.lines import Warn
from kvbench.records.moments import as_metadata, spans_of
from kvbench.records.parquet_rows import write_parquet
from kvbench.records.rows import Describe
from kvbench.report.eee import write_eee
from kvbench.report.experiments import CODE, Experiments
from kvbench.report.formats.data import write_csv
from kvbench.report.junit import Case, Outcome, junit_xml
from kvbench.report.output import check_format, check_parquet, file_to, text_to
from kvbench.report.rows import describer, load, load_table
from kvbench.report.selection import Where
from kvbench.report.tables.summary import NEEDED, Summary, summaries
from kvbench.report.tables.table import print_table
from kvbench.support.errors import UserError
from kvbench.support.grouped import grouped

FORMATS = ("eee", "github-benchmark", "junit", "markdown", "parquet")
ROW_FORMATS = ("jsonl", "csv", "parquet")
QUANTITIES = ("accuracy", "bytes", "seconds")


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


def names_of(runs: Sequence[Collection[Summary]], describe: Describe) -> dict[str, str]:
    """Return the name of each cell in a chart: the same from commit to commit, while its hash may change with the code.

    runs: the cells of each commit. A name ends with the settings that tell its cell from others; the code is named only
    where one run has cells of several.
    """
    names = {cell.cell: _named(cell) for cells in runs for cell in cells}
    for axes in ((CODE,), ()):
        words = Experiments(axes, describe).told_apart(names)
        told = names if axes else _alike(runs, names)
        names |= {cell: f"{names[cell]} {words[cell]}" for cell in told if words[cell]}
    return names | {cell: f"{names[cell]} {cell}" for cell in _alike(runs, names)}


def _alike(runs: Sequence[Collection[Summary]], names: Mapping[str, str]) -> set[str]:
    """Cells with the name of another one of their run."""
    charts = [{cell.cell for cell in cells} for cells in runs]
    counts = [Counter(names[cell] for cell in cells) for cells in charts]
    return {cell for cells, count in zip(charts, counts, strict=True) for cell in cells if count[names[cell]] > 1}


def _named(cell: Summary) -> str:
    question = (cell.model, cell.task, cell.context_length)
    method = (cell.policy, cell.score, cell.budget, cell.layout, cell.schedule)
    return " ".join(str(part) for part in (*question, *method) if part not in (None, "kv_heads", "prompt"))


def _point(cell: Summary, name: str, quantity: str) -> dict[str, object] | None:
    """Return a point of a chart; None if the cell does not have the quantity."""
    value, unit, span = measured(cell, quantity)
    extra = f"n={cell.n} errors={cell.errors} cell={cell.cell}"
    point: dict[str, object] = {"name": name, "unit": unit, "value": value, "range": span, "extra": extra}
    return None if value is None else point


def measured(cell: Summary, quantity: str) -> tuple[float | None, str, str]:
    """Return the number of a cell, its unit and its interval.

    Seconds are of evicting one prompt; of an efficiency task, of one decoding step. Elsewhere cells share
    their steps, so that a cell has no decoding time of its own.
    """
    if quantity == "bytes":
        return cell.held_bytes, "bytes", ""
    if quantity == "seconds":
        is_timed = cell.metric == "seconds_per_token"
        return cell.mean if is_timed else cell.evict_seconds, "seconds", ""
    scale = 100 if cell.rate else 1
    span = "" if cell.low is None or cell.high is None else f"{scale * cell.low:.4g}..{scale * cell.high:.4g}"
    value = None if cell.mean is None else scale * cell.mean
    return value, f"{cell.metric or 'value'}{' %' if cell.rate else ''}", span


def _case(cell: Summary, name: str) -> Case:
    text = "\n".join(f"{message}: {list(failed)}" for message, failed in cell.failures.items())
    failed = Outcome("error", f"{cell.errors} of {cell.n + cell.errors} samples failed", "samples", text)
    errors = [failed] if cell.errors else []
    value, unit, span = measured(cell, "accuracy")
    return Case(f"kvbench.{cell.task}", name, errors, f"{unit} {value} [{span}] n={cell.n}")


def print_rows(
    folder: str | os.PathLike[str],
    format: str,
    out: TextIO | Path,
    warn: Warn = warnings.warn,
    where: Where | None = None,
) -> None:
    """Write every row: ``jsonl`` is lossless; in ``csv`` a missing value and an empty text are both blank.

    ``parquet`` goes to a path and can be read in place of a folder; only half surrogate pairs and values that are not
    numbers differ from what was recorded.
    """
    check_format(format, ROW_FORMATS)
    if format == "parquet":
        file = check_parquet(out)
        table, describe = load_table(folder, COLUMNS, warn, where), describer(folder)
        spans = spans_of(Path(folder), table)
        file_to(file, lambda path: write_parquet(table, path, describe, as_metadata(spans)))
        return
    rows = load(folder, warn, where)
    with text_to(out) as stream:
        if format == "jsonl":
            stream.writelines(row.to_json() + "\n" for row in rows)
        else:
            write_csv([COLUMNS, *([getattr(row, name) for name in COLUMNS] for row in rows)], stream)
