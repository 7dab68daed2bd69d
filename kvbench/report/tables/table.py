"""`kvbench report table`: one figure a cell of the sweep, its interval beside it."""

import json
import math
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.text import Text

from kvbench.records import Row
from kvbench.report.compare.sides import conditions
from kvbench.report.loading import check_format, describer, load, load_table
from kvbench.report.output import file_to, text_to
from kvbench.report.reading import Warn
from kvbench.report.survivors import Mark, survivors
from kvbench.report.tables.average import averaged
from kvbench.report.tables.delimited import write_csv
from kvbench.report.tables.latex import latex_text
from kvbench.report.tables.markdown import markdown_lines
from kvbench.report.tables.pivot import COLUMNS, LINES, arrange, check_keys
from kvbench.report.tables.sheet import Sheet, sheet
from kvbench.report.tables.summary import COLUMNS as SUMMARY_COLUMNS
from kvbench.report.tables.summary import NEEDED, Summary, frame_of, summaries
from kvbench.report.tables.text import plain, text_lines
from kvbench.report.tables.where import Where, has
from kvbench.support.errors import UserError

FORMATS = ("text", "markdown", "latex", "csv", "json", "parquet")
LONG = ("csv", "json", "parquet")  # one line a cell
WIDTH = 100  # of text that does not go to a terminal


def print_table(
    folder: str | os.PathLike[str],
    format: str,
    out: TextIO | Path,
    rows: str | Sequence[str] | None = None,
    cols: str | Sequence[str] | None = None,
    warn: Warn = warnings.warn,
    width: int | None = None,
    where: Where | None = None,
    against: str | None = None,
    average: str | None = None,
) -> None:
    """Write the table of a results folder.

    ``text``, ``markdown``, ``latex``: a block a (model, task, context length), a line a policy and score, a column a
    budget, or what ``rows`` and ``cols`` name instead ("policy,layout"). The formats in ``LONG`` are one line a cell,
    all columns of `kvbench.report.tables.summary.Summary`, no ``rows`` and ``cols``. ``where``: which rows, see
    `kvbench.report.tables.where`. ``against``: a policy, or a selection as of `kvbench compare`
    ("policy=snapkv,score=attn"); the cells that differ from it beyond chance are marked.
    ``average``: one line a setting over the tasks of LongBench instead, see `kvbench.report.tables.average`. ``width``:
    columns of text; default: those of the terminal, or ``WIDTH`` where ``out`` is none. Colour only on a terminal, and
    not where NO_COLOR is set.

    Raises ValueError for an unknown format, key or policy, FileNotFoundError where there are no rows, NothingSelected
    where none is selected.
    """
    check_format(format, FORMATS)
    if format in LONG and (rows, cols, against) != (None, None, None):
        blocks = "|".join(known for known in FORMATS if known not in LONG)
        named = "rows= and cols=" if against is None else "against="
        raise UserError(f"--format {format} is one line a cell; leave {named} out, or choose --format {blocks}")
    if format == "parquet" and not isinstance(out, Path):
        raise UserError("--format parquet is no text; name a file with --out FILE.parquet")
    rows, cols = _keys(rows, LINES), _keys(cols, COLUMNS)
    if rows == LINES or cols == COLUMNS:  # naming only one of them may claim a key of the other's default
        rows = tuple(key for key in rows if rows is not LINES or key not in cols)
        cols = tuple(key for key in cols if cols is not COLUMNS or key not in rows)
    check_keys(rows, cols)
    by_question = "question_number" in (*rows, *cols)
    if by_question and (against, average) != (None, None):
        what = "against= compares" if average is None else "--average takes"
        raise UserError(f"{what} whole cells: leave question_number out of rows= and cols=, or that out")
    lines = summaries(load_table(folder, NEEDED, warn, where), by_question)
    if average is not None:
        if against is not None:
            raise UserError("--average and against= do not go together: what is marked are cells of one task")
        lines = averaged(lines, average)
    if format == "parquet":
        assert isinstance(out, Path)
        file_to(out, lambda path: frame_of(lines).to_parquet(path, index=False))
        return
    marks = {} if against is None else _marks(folder, where, against)
    sheets = [] if format in LONG else _sheets(lines, folder, rows, cols, marks, against or "")
    with text_to(out) as stream:
        if format == "csv":
            write_csv(SUMMARY_COLUMNS, lines, stream)
        elif format == "json":
            _write_json(lines, stream)
        elif format == "markdown":
            stream.write("\n\n".join("\n".join(markdown_lines(part)) for part in sheets) + "\n")
        elif format == "latex":
            stream.write("\n\n".join(latex_text(part) for part in sheets) + "\n")
        else:
            _print_text(sheets, stream, width)


def _write_json(lines: Sequence[Summary], out: TextIO) -> None:
    """One object a line of the table, failed samples by message; a number without an end is missing."""
    found = []
    for line in lines:
        columns = {name: getattr(line, name) for name in SUMMARY_COLUMNS}
        finite = {name: None if isinstance(v, float) and not math.isfinite(v) else v for name, v in columns.items()}
        found.append(finite | {"failures": line.failures, "blank_samples": line.blank_samples})
    json.dump(found, out, indent=1, allow_nan=False)
    out.write("\n")


def print_table_of(found: Sequence[Row], folder: str | os.PathLike[str], out: TextIO) -> None:
    """Write the text table of rows that were read from `folder` already."""
    _print_text(_sheets(summaries(found), folder, LINES, COLUMNS), out, None)


def _sheets(
    lines: Sequence[Summary],
    folder: str | os.PathLike[str],
    rows: tuple[str, ...],
    cols: tuple[str, ...],
    marks: Mapping[str, Mark] | None = None,
    against: str = "",
) -> list[Sheet]:
    return [sheet(block, marks, against) for block in arrange(lines, rows, cols, describer(folder))]


def _marks(folder: str | os.PathLike[str], where: Where | None, against: str) -> dict[str, Mark]:
    """Raises ValueError where no selected row is one of these."""
    found = load(folder, lambda text: None, where)  # told once already
    asked = conditions(against if "=" in against else f"policy={against}")
    describe = describer(folder)
    bases = {row.cell for row in found if has(row, asked, describe)}
    if not bases:
        known = ", ".join(sorted({row.policy for row in found}))
        raise UserError(f"against={against}: no selected row has that; there is policy {known}")
    try:
        return survivors(found, lambda row: row.cell in bases)
    except ValueError as error:
        raise UserError(f"against={against}: {error}") from error


def _keys(named: str | Sequence[str] | None, default: tuple[str, ...]) -> tuple[str, ...]:
    if named is None:
        return default
    return tuple(key.strip() for key in (named.split(",") if isinstance(named, str) else named) if key.strip())


def _print_text(sheets: Sequence[Sheet], out: TextIO, width: int | None) -> None:
    console = Console(file=out, highlight=False, markup=False, emoji=False, soft_wrap=True)
    for i, part in enumerate(sheets):
        if i:
            out.write("\n")
        lines = text_lines(part, width or (console.width if console.is_terminal else WIDTH))
        if not console.is_terminal:
            out.write(plain(lines))
            continue
        for line in lines:
            console.print(Text.assemble(*line))
