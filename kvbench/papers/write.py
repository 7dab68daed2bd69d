"""A page as text, Markdown, LaTeX, or as one line a number."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from kvbench.papers.page import Page
from kvbench.report.output import check_format, text_to
from kvbench.report.tables.grid import escaped, write_lines
from kvbench.report.tables.latex import escaped as latex_escaped
from kvbench.report.tables.latex import latex_text
from kvbench.report.tables.sheet import Sheet
from kvbench.report.tables.table import markdown_lines, plain, text_lines
from kvbench.support.text import printable

FORMATS = ("text", "markdown", "latex", "csv")
WIDTH = 120


def write_page(page: Page, format: str, out: TextIO | Path) -> None:
    """Write a page. ``csv`` has one line a place of the layout. Raises ValueError for an unknown format."""
    check_format(format, FORMATS)
    with text_to(out) as stream:
        if format == "csv":
            _numbers(page, stream)
        elif format == "markdown":
            stream.write("\n".join(_markdown(page)) + "\n")
        elif format == "latex":
            stream.write("\n\n".join(_latex(page)) + "\n")
        else:
            stream.write(_text(page))


def _sheets(page: Page) -> Sequence[Sheet]:
    return [sheet for sheet in (page.ours, page.published, page.difference) if sheet is not None]


def _text(page: Page) -> str:
    parts = ["\n".join(line for text in page.head for line in textwrap.wrap(printable(text), WIDTH)) + "\n"]
    parts += [plain(text_lines(sheet, WIDTH)) for sheet in _sheets(page)]
    if page.notes:
        parts.append(
            "".join(
                f"{line}\n"
                for note in page.notes
                for line in textwrap.wrap(printable(note), WIDTH, subsequent_indent="  ")
            )
        )
    return "\n".join(parts)


def _markdown(page: Page) -> list[str]:
    first, *rest = page.head
    out = [f"# {escaped(first)}", "", *(line for text in rest for line in (f"*{escaped(text)}*", ""))]
    for sheet in _sheets(page):
        out += [*markdown_lines(sheet), ""]
    return [*out, *(f"- {escaped(note)}" for note in page.notes)]


def _latex(page: Page) -> list[str]:
    head = [f"% {latex_escaped(line)}" for line in page.head]
    notes = [f"% {latex_escaped(note)}" for note in page.notes]
    return ["\n".join(head), *map(latex_text, _sheets(page)), "\n".join(notes)]


def _numbers(page: Page, out: TextIO) -> None:
    keys = page.item.keys
    lines: list[list[Any]] = []
    lines += [
        ["item", "smoke", *keys, "ours", "low", "high", "n", "published", "unit", "flag", "difference", "differs"]
    ]
    for at, ours, theirs, difference in page.numbers:
        mine = [None, None, None, None] if ours is None else [ours.mean, ours.low, ours.high, ours.n]
        printed = ["", "", ""] if theirs is None else [theirs.value, theirs.unit, theirs.flag]
        differs = "" if ours is None else "; ".join(ours.differs)
        lines.append([page.item.name, page.smoke, *at, *mine, *printed, difference, differs])
    write_lines(lines, out)
