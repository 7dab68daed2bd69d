"""Tables as aligned text, in colours on a terminal, folded between columns and words where it is narrow."""

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TextIO

from rich.console import Console
from rich.text import Text

from kvbench.report.formats.table import Figure, Report, Table, runs
from kvbench.support.text import printable, wrapped

BEST, SECOND = "*", "'"
WIDTH = 120
"""Columns that texts around tables have at most."""
STYLES = {"": "", "good": "green", "bad": "red"}

Span = tuple[str, str]
"""A text and its style, one of rich's; "" for none."""
Spans = list[Span]


@dataclass(frozen=True)
class Column:
    """The texts of one column: its head from top to bottom, then the lines, with a style for each or none at all."""

    heads: Sequence[str]
    body: Sequence[str]
    align: str = "<"
    styles: Sequence[str] = ()


def write_text(report: Report, out: TextIO, width: int | None = None) -> None:
    """Write a report; ``width``: columns, by default of the terminal or COLUMNS, else of the report."""
    console = plain_console(out)
    width = width or width_of(console) or report.width
    parts: list[list[Spans]] = []
    if head := [*filter(None, (*report.warnings, report.title, *report.head))]:
        parts.append([line for text in head for line in folded(text, width)])
    if report.tables:
        parts.append(_apart(table_lines(table, width) for table in report.tables))
    if report.notes:
        parts.append([line for text in report.notes for line in folded(text, width, others="  ")])
    print_lines(_apart(parts), console)


def print_table(table: Table, out: TextIO) -> None:
    """Print one table alone, in columns of the terminal."""
    console = plain_console(out)
    print_lines(table_lines(table, width_of(console)), console)


def width_of(console: Console) -> int | None:
    """Columns of the terminal that is written to, or as COLUMNS says; None for a file."""
    return console.width if console.is_terminal or "COLUMNS" in os.environ else None


def plain_console(out: TextIO) -> Console:
    """Return a console that prints texts as they are: no markup, no highlighting, no wrapping."""
    return Console(file=out, highlight=False, markup=False, emoji=False, soft_wrap=True)


def print_lines(lines: Iterable[Sequence[Span]], console: Console) -> None:
    """Print lines in their styles, without blanks at their ends."""
    for line in lines:
        text = Text.assemble(*line)
        text.rstrip()
        console.print(text)


def plain_lines(table: Table) -> list[str]:
    """Return the lines of a table without styles, as long as they are."""
    return ["".join(text for text, _ in line).rstrip() for line in table_lines(table, None)]


def folded(text: str, width: int | None, style: str = "", first: str = "", others: str = "") -> list[Spans]:
    """Return a text in lines of ``width``, at most ``WIDTH``, that begin with ``first`` and ``others``."""
    return [[(line, style)] for line in wrapped(first + printable(text), min(width or WIDTH, WIDTH), others)]


def _apart(parts: Iterable[list[Spans]]) -> list[Spans]:
    """Return all lines, with a blank one between parts."""
    lines: list[Spans] = []
    for part in parts:
        lines += [*([[("", "")]] if lines else []), *part]
    return lines


def table_lines(table: Table, width: int | None) -> list[Spans]:
    """Return the lines of one table in spans, none longer than ``width`` unless a single column is."""
    caption = table.caption_with(f"{BEST} best", f"{SECOND} second")
    head = folded(table.title, width, "bold") if table.title else []
    head += folded(caption, width) if caption else []
    columns = [_figures(table, i) for i in range(len(table.heads))]
    if table.aside:
        levels = len(table.heads[0]) - 1 if table.heads else 0
        asides = [line.aside for line in table.lines]
        columns.append(Column((table.aside, *[""] * levels), asides, ">", ["dim"] * len(asides)))
    parts = [head, _text_grid(_labels(table), columns, width, table.groups, table.rules)]
    notes = [line for note in table.notes for line in folded(note, width, "dim")]
    for i, error in enumerate(table.errors):
        notes += folded(error, width, "red", "  " if i else "", "    ")
    return _apart(part for part in (*parts, notes) if part)


def _labels(table: Table) -> Column:
    """Return all labels in one column. A label with nothing to its right may run over its neighbours' place."""
    lines = [[*map(printable, labels)] for labels in (table.labels, *(line.labels for line in table.lines))]
    widths = [
        max((len(labels[i]) for labels in lines if any(labels[i + 1 :])), default=0) for i in range(len(table.labels))
    ]
    head, *body = ["  ".join(f"{label:{widths[i]}}" for i, label in enumerate(labels)).rstrip() for labels in lines]
    levels = len(table.heads[0]) if table.heads else 1
    return Column((head, *[""] * (levels - 1)), body)


def _figures(table: Table, index: int) -> Column:
    """Means, marks, intervals and notes each aligned among themselves, as a whole to the side of the column."""
    figures = [line.figures[index] for line in table.lines]
    marked, side = table.is_ranked, ">" if table.side(index) == "r" else "<"
    mean, low, high, note = (
        max((len(printable(getattr(figure, name))) for figure in figures), default=0)
        for name in ("mean", "low", "high", "note")
    )

    def aligned(figure: Figure) -> str:
        if not figure.mean:
            return printable(figure.note).rjust(mean + marked)
        between = f"[{figure.low:>{low}},{figure.high:>{high}}]" if figure.low else " " * (low + high + 3 if low else 0)
        mark = BEST if figure.best else SECOND if figure.second and table.seconds else " "
        text = f"{printable(figure.mean):{side}{mean}}" + mark * marked
        return f"{text} {between} {printable(figure.note):<{note}}".rstrip() if note else f"{text} {between}".rstrip()

    body = [aligned(figure) for figure in figures]
    inner = max(map(len, body), default=0)
    styles = [
        "dim"
        if line.reference
        else "bold green"
        if figure.best
        else "underline"
        if figure.second and table.seconds
        else "red"
        if figure.note and not figure.mean
        else STYLES[figure.tone]
        for line, figure in zip(table.lines, figures, strict=True)
    ]
    return Column([*map(printable, table.heads[index])], [f"{text:{inner}}" for text in body], side, styles)


def _text_grid(
    labels: Column, columns: Sequence[Column], width: int | None, groups: int, rules: Collection[int]
) -> list[Spans]:
    """Aligned lines; columns that do not fit into ``width`` come in blocks below, each beside the labels.

    The first ``groups`` levels of heads stand once over neighbours that share them. ``rules``: how many lines stand
    above each rule.
    """
    wide, narrow = (_width([labels, *columns], gap, groups) for gap in (2, 1))
    gap = 2 if width is None or wide <= width or narrow > width else 1
    blocks = [[labels]]
    for _, members in groupby(columns, key=lambda column: tuple(column.heads[:groups]) if groups else id(column)):
        unit = list(members)
        together = width is None or _width([labels, *unit], gap, groups) <= width
        for part in [unit] if together else [[column] for column in unit]:
            is_full = width is not None and _width([*blocks[-1], *part], gap, groups) > width
            if is_full and len(blocks[-1]) > 1:
                blocks.append([labels])
            blocks[-1] += part
    first = 1 if len(blocks) > 1 else 0
    return _apart(list(_block_lines(block, first, gap, groups, rules)) for block in blocks)


def _widths(columns: Sequence[Column], gap: int, groups: int) -> list[int]:
    widths = [max(map(len, (*column.heads[groups:], *column.body))) for column in columns]
    for level in reversed(range(groups)):
        for run in runs([column.heads for column in columns], level, groups):
            room = sum(widths[i] for i in run) + gap * (len(run) - 1)
            widths[run[-1]] += max(len(columns[run[0]].heads[level]) - room, 0)
    return widths


def _width(columns: Sequence[Column], gap: int, groups: int) -> int:
    return sum(_widths(columns, gap, groups)) + gap * (len(columns) - 1)


def _block_lines(
    columns: Sequence[Column], first: int, gap: int, groups: int, rules: Collection[int]
) -> Iterator[Spans]:
    """Yield the lines of a block, without those in which no column from the `first` on has a text."""
    widths = _widths(columns, gap, groups)
    for level in range(len(columns[0].heads)):
        spans: Spans = []
        for run in runs([column.heads for column in columns], level, groups):
            column, room = columns[run[0]], sum(widths[i] for i in run) + gap * (len(run) - 1)
            head = column.heads[level]
            text = f" {head} ".center(room, "-") if head and len(run) > 1 else f"{head:{column.align}{room}}"
            spans.append((text, "dim" if level else "bold"))
        if any(text.strip() for text, _ in spans):
            yield _joined(spans, gap)
    for number in range(len(columns[0].body) + 1):
        if number and any(column.body[number - 1].strip() for column in columns[first:]):
            spans = [
                (f"{column.body[number - 1]:{column.align}{width}}", column.styles[number - 1] if column.styles else "")
                for column, width in zip(columns, widths, strict=True)
            ]
            yield _joined(spans, gap)
        if number in rules:
            yield [("-" * (sum(widths) + gap * (len(widths) - 1)), "dim")]


def _joined(spans: Sequence[Span], gap: int) -> Spans:
    first, *others = spans
    return [first, *(part for span in others for part in ((" " * gap, ""), span))]
