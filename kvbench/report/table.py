"""`kvbench report table`: one figure a cell of the sweep, its interval beside it."""

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.text import Text

from kvbench.records import Row
from kvbench.report.delimited import write_csv
from kvbench.report.loading import check_format, describer, load_table
from kvbench.report.markdown import markdown_lines
from kvbench.report.output import text_to
from kvbench.report.pivot import COLUMNS, LINES, arrange, check_keys
from kvbench.report.reading import Warn
from kvbench.report.sheet import Sheet, sheet
from kvbench.report.summary import COLUMNS as SUMMARY_COLUMNS
from kvbench.report.summary import NEEDED, Summary, summaries
from kvbench.report.text import plain, text_lines
from kvbench.report.where import Where

FORMATS = ("text", "markdown", "csv")
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
) -> None:
    """Write the table of a results folder.

    ``text`` and ``markdown``: a block a (model, task, context length), a line a policy and score, a column a budget, or
    what ``rows`` and ``cols`` name instead ("policy,layout"). ``csv``: the long form, one line a cell, all columns of
    `kvbench.report.summary.Summary`, no ``rows`` and ``cols``. ``width``: columns of text; default: those of the
    terminal, or ``WIDTH`` where ``out`` is none. Colour only on a terminal, and not where NO_COLOR is set.

    Raises ValueError for an unknown format or key and FileNotFoundError where there are no rows.
    """
    check_format(format, FORMATS)
    if format == "csv" and (rows is not None or cols is not None):
        raise ValueError("--format csv is one line a cell; leave rows= and cols= out, or choose --format text|markdown")
    rows, cols = _keys(rows, LINES), _keys(cols, COLUMNS)
    if rows == LINES or cols == COLUMNS:  # naming only one of them may claim a key of the other's default
        rows = tuple(key for key in rows if rows is not LINES or key not in cols)
        cols = tuple(key for key in cols if cols is not COLUMNS or key not in rows)
    check_keys(rows, cols)
    found = load_table(folder, NEEDED, warn, where)
    lines = summaries(found)
    sheets = [] if format == "csv" else _sheets(lines, folder, rows, cols)
    with text_to(out) as stream:
        if format == "csv":
            write_csv(SUMMARY_COLUMNS, lines, stream)
        elif format == "markdown":
            stream.write("\n\n".join("\n".join(markdown_lines(part)) for part in sheets) + "\n")
        else:
            _print_text(sheets, stream, width)


def print_table_of(found: Sequence[Row], folder: str | os.PathLike[str], out: TextIO) -> None:
    """Write the text table of rows that were read from `folder` already."""
    _print_text(_sheets(summaries(found), folder, LINES, COLUMNS), out, None)


def _sheets(
    lines: Sequence[Summary], folder: str | os.PathLike[str], rows: tuple[str, ...], cols: tuple[str, ...]
) -> list[Sheet]:
    return [sheet(block) for block in arrange(lines, rows, cols, describer(folder))]


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
