"""Tables of strings: as aligned text, as Markdown, as CSV.

Markdown is GitHub-flavoured (https://github.github.com/gfm/#tables-extension-). CSV is that of RFC 4180, with a bare
newline at the end of a line; a missing value is blank. A spreadsheet takes a text that begins with = + - or @ for a
formula, which may read files and send them away; such a text gets an apostrophe before it, which marks text in
spreadsheets (https://owasp.org/www-community/attacks/CSV_Injection). A text that is a number stays as it is. A line
that GitHub Actions would take for a command (::error ...) gets one too. The JSON formats are lossless.
"""

import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TextIO

from rich.console import Console
from rich.text import Text

from kvbench.support.text import printable

_MARKUP = re.compile(r"[\\`*<|~]|\](?=[(\[:])|&(?=#?\w+;)|(?<![^\W_])_|_(?![^\W_])")
r"""Characters that are always markup; ] before what makes it a link; & of an entity; _ at the edge of a word."""
_FORMULA = re.compile(r"[\s\x00]*[=+\-@\uff1d\uff0b\uff0d\uff20]|[\t\r]")
_COMMAND = re.compile(r"(?m)(^|[\r\u2028\u2029])(\s*)(::|##\[)")
"""How a line begins that a runner of GitHub Actions takes for a command when a job prints it."""
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


Span = tuple[str, str]
"""A text and its style, one of rich's; "" for none."""


@dataclass(frozen=True)
class Column:
    """The texts of one column: its head from top to bottom, then the lines, with a style for each or none at all."""

    heads: Sequence[str]
    body: Sequence[str]
    align: str = "<"
    styles: Sequence[str] = ()


def text_grid(
    labels: Sequence[Column],
    columns: Sequence[Column],
    width: int | None = None,
    groups: int = 0,
    rules: Collection[int] = (),
) -> list[list[Span]]:
    """Aligned lines; columns that do not fit into ``width`` come in blocks below, each beside the labels.

    The first ``groups`` levels of heads stand once over neighbours that share them. ``rules``: how many lines stand
    above each rule.
    """
    wide, narrow = (_width([*labels, *columns], gap, groups) for gap in (2, 1))
    gap = 2 if width is None or wide <= width or narrow > width else 1
    blocks = [[*labels]]
    for _, members in groupby(columns, key=lambda column: tuple(column.heads[:groups]) if groups else id(column)):
        unit = list(members)
        together = width is None or _width([*labels, *unit], gap, groups) <= width
        for part in [unit] if together else [[column] for column in unit]:
            is_full = width is not None and _width([*blocks[-1], *part], gap, groups) > width
            if is_full and len(blocks[-1]) > len(labels):
                blocks.append([*labels])
            blocks[-1] += part
    lines: list[list[Span]] = []
    for block in blocks:
        lines += [[("", "")]] if lines else []
        lines += _block_lines(block, gap, groups, rules)
    return lines


def runs(heads: Sequence[Sequence[str]], level: int, groups: int) -> Iterator[Sequence[int]]:
    """The places of neighbours that share their heads down to this level; beyond `groups` levels, each alone."""
    start = 0
    for _, members in groupby(range(len(heads)), lambda i: tuple(heads[i][: level + 1]) if level < groups else i):
        yield range(start, start := start + len(list(members)))


def head_rows(heads: Sequence[Sequence[str]], groups: int) -> list[list[tuple[str, int]]]:
    """The levels of heads that say anything: each head, and how many columns share it (in the first `groups` ones)."""
    levels = [level for level in range(len(heads[0]) if heads else 0) if any(head[level] for head in heads)] or [0]
    return [[(heads[run[0]][level], len(run)) for run in runs(heads, level, groups)] for level in levels]


def _widths(columns: Sequence[Column], gap: int, groups: int) -> list[int]:
    widths = [max(map(len, (*column.heads[groups:], *column.body))) for column in columns]
    for level in reversed(range(groups)):
        for run in runs([column.heads for column in columns], level, groups):
            room = sum(widths[i] for i in run) + gap * (len(run) - 1)
            widths[run[-1]] += max(len(columns[run[0]].heads[level]) - room, 0)
    return widths


def _width(columns: Sequence[Column], gap: int, groups: int) -> int:
    return sum(_widths(columns, gap, groups)) + gap * (len(columns) - 1)


def _block_lines(columns: Sequence[Column], gap: int, groups: int, rules: Collection[int]) -> Iterator[list[Span]]:
    widths = _widths(columns, gap, groups)
    for level in range(len(columns[0].heads)):
        spans: list[Span] = []
        for run in runs([column.heads for column in columns], level, groups):
            column, room = columns[run[0]], sum(widths[i] for i in run) + gap * (len(run) - 1)
            head = column.heads[level]
            text = f" {head} ".center(room, "-") if head and len(run) > 1 else f"{head:{column.align}{room}}"
            spans.append((text, "dim" if level else "bold"))
        if any(text.strip() for text, _ in spans):
            yield _joined(spans, gap)
    for number in range(len(columns[0].body) + 1):
        if number:
            spans = [
                (f"{column.body[number - 1]:{column.align}{width}}", column.styles[number - 1] if column.styles else "")
                for column, width in zip(columns, widths, strict=True)
            ]
            yield _joined(spans, gap)
        if number in rules:
            yield [("-" * (sum(widths) + gap * (len(widths) - 1)), "dim")]


def _joined(spans: Sequence[Span], gap: int) -> list[Span]:
    first, *others = spans
    return [first, *(part for span in others for part in ((" " * gap, ""), span))]


def print_lines(lines: Iterable[Sequence[Span]], console: Console) -> None:
    """Print lines in their styles, without blanks at their ends."""
    for line in lines:
        text = Text.assemble(*line)
        text.rstrip()
        console.print(text)


@dataclass(frozen=True)
class Grid:
    """Heads and lines of one table. ``align``: "l" or "r" for each column."""

    heads: Sequence[str]
    lines: Sequence[Sequence[str]]
    align: str

    def columns(self) -> list[Column]:
        """The same texts by column."""
        return [
            Column([head], [line[i] for line in self.lines], "<" if side == "l" else ">")
            for i, (head, side) in enumerate(zip(self.heads, self.align, strict=True))
        ]

    def print(self, console: Console, labels: int = 0, width: int | None = None) -> None:
        """Print aligned columns, the heads in bold; in blocks of ``width``, each with the first ``labels`` columns."""
        columns = self.columns()
        print_lines(text_grid(columns[:labels], columns[labels:], width), console)

    def text(self) -> list[str]:
        """The lines of a table of aligned columns."""
        return ["".join(text for text, _ in line).rstrip() for line in text_grid([], self.columns())]

    def markdown(self) -> list[str]:
        """The lines of a Markdown table."""
        return markdown_table(*(list(map(escaped, line)) for line in (self.heads, *self.lines)), align=self.align)

    def write(self, format: str, out: TextIO) -> None:
        """Write a Markdown table, or aligned columns as ``text``."""
        if format == "markdown":
            out.write("\n".join(self.markdown()) + "\n")
        else:
            self.print(plain_console(out))


def plain_console(out: TextIO) -> Console:
    """A console that prints texts as they are: no markup, no highlighting, no wrapping."""
    return Console(file=out, highlight=False, markup=False, emoji=False, soft_wrap=True)


def markdown_table(heads: Sequence[str], *lines: Sequence[str], align: str) -> list[str]:
    """The lines of a Markdown table from texts that are escaped already."""
    rule = [":--" if side == "l" else "--:" for side in align]
    return ["| " + " | ".join(line) + " |" for line in (heads, rule, *lines)]


def escaped(text: str) -> str:
    """A text of one line in which no Markdown reader finds HTML, emphasis, code, links, tables or entities."""
    return _MARKUP.sub(r"\\\g<0>", printable(text))


def write_items(
    items: Sequence[Mapping[str, Any]], format: str, out: TextIO, columns: Sequence[str] | None = None
) -> None:
    """Write items as CSV with these columns, by default all names; or as JSON, where NaN and infinity are null."""
    if format == "csv":
        names = columns or list(dict.fromkeys(name for item in items for name in item))
        write_csv([names, *([item.get(name) for name in names] for item in items)], out)
    else:
        finite = [{name: None if _is_not_finite(value) else value for name, value in item.items()} for item in items]
        write_json(finite, out)


def _is_not_finite(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def write_json(value: Any, out: TextIO) -> None:
    """A value as JSON. Raises ValueError for NaN and infinity."""
    json.dump(value, out, indent=1, allow_nan=False)
    out.write("\n")


def write_csv(lines: Iterable[Iterable[Any]], out: TextIO) -> None:
    """Lines of values, numbers with all digits; none of their texts is a formula or a command of GitHub Actions."""
    for line in lines:
        out.write(",".join(map(_field, line)) + "\n")


def _field(value: Any) -> str:
    """A value as a field, invisible characters but tabs and line ends as escapes.

    Quoted here, because csv.writer before Python 3.13 leaves a lone carriage return bare.
    """
    if not isinstance(value, str):
        return "" if value is None else str(value)
    text = printable(value, keep="\t\r\n\u2028\u2029")
    if _FORMULA.match(text) and not _NUMBER.fullmatch(text):
        text = f"'{text}"
    text = _COMMAND.sub(r"\1\2'\3", text)
    return '"' + text.replace('"', '""') + '"' if set(text) & set(',"\r\n') else text
