"""`kvbench report table`: one figure a cell of the sweep, its interval beside it."""

import os
from collections.abc import Callable, Sequence
from typing import TextIO

from rich.console import Console
from rich.text import Text

from kvbench.records import ResultsFolder, Row
from kvbench.report.delimited import write_csv
from kvbench.report.loading import check_format, load
from kvbench.report.markdown import markdown_lines
from kvbench.report.pivot import COLUMNS, LINES, arrange, check_keys
from kvbench.report.sheet import Sheet, sheet
from kvbench.report.summary import COLUMNS as SUMMARY_COLUMNS
from kvbench.report.summary import summaries
from kvbench.report.text import plain, text_lines

FORMATS = ("text", "markdown", "csv")
WIDTH = 100  # of text that does not go to a terminal


def print_table(
    folder: str | os.PathLike[str],
    format: str,
    out: TextIO,
    rows: str | Sequence[str] | None = None,
    cols: str | Sequence[str] | None = None,
    warn: Callable[[str], None] | None = None,
    width: int | None = None,
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
    found = load(folder, warn)
    if format == "csv":
        write_csv(SUMMARY_COLUMNS, summaries(found), out)
        return
    sheets = _sheets(found, folder, rows, cols)
    if format == "markdown":
        out.write("\n\n".join("\n".join(markdown_lines(part)) for part in sheets) + "\n")
    else:
        _print_text(sheets, out, width)


def print_table_of(found: Sequence[Row], folder: str | os.PathLike[str], out: TextIO) -> None:
    """Write the text table of rows that were read from `folder` already."""
    _print_text(_sheets(found, folder, LINES, COLUMNS), out, None)


def _sheets(
    found: Sequence[Row], folder: str | os.PathLike[str], rows: tuple[str, ...], cols: tuple[str, ...]
) -> list[Sheet]:
    return [sheet(block) for block in arrange(summaries(found), rows, cols, ResultsFolder(folder).read_cell)]


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
