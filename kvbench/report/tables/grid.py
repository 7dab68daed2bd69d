"""A sheet as a GitHub-flavoured Markdown table (https://github.github.com/gfm/#tables-extension-).

Tables of a few columns as lines of text.

Comma-separated values as RFC 4180 has them, with a bare newline at the end of a line; missing is blank.

A spreadsheet takes a text that begins with = + - or @ for a formula, which may read files and send them away. Such a
text gets an apostrophe before it, as spreadsheets have it for text (https://owasp.org/www-community/attacks/CSV_Injection).
A number that is text stays as it is. The JSON formats are lossless.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TextIO

from kvbench.support.printable import printable

_MARKUP = re.compile(r"[\\`*<|~]|\](?=[(\[:])|&(?=#?\w+;)|(?<![^\W_])_|_(?![^\W_])")
r"""Signs that are always markup; ] before what makes it a link; & of an entity; _ at the edge of a word."""


def markdown_line(items: list[str]) -> str:
    """One line of a table from texts that are escaped."""
    return "| " + " | ".join(items) + " |"


def escaped(text: str) -> str:
    """Text of one line that no Markdown reader takes for markup: HTML, emphasis, code, links, tables, entities."""
    return _MARKUP.sub(r"\\\g<0>", printable(text))


def padded(grid: Sequence[Sequence[str]], left: int) -> list[list[str]]:
    """The texts of every line as wide as their columns: the first `left` of them to the left, the others right."""
    sizes = [max(map(len, column)) for column in zip(*grid, strict=True)]
    return [
        [
            text.ljust(width) if place < left else text.rjust(width)
            for place, (text, width) in enumerate(zip(line, sizes, strict=True))
        ]
        for line in grid
    ]


def aligned(grid: Sequence[Sequence[str]], left: int) -> list[str]:
    """A line of text for every line of a grid."""
    return ["  ".join(line).rstrip() for line in padded(grid, left)]


_FORMULA = re.compile(r"[\s\x00]*[=+\-@\uff1d\uff0b\uff0d\uff20]|[\t\r]")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def write_csv(columns: Sequence[str], items: Iterable[Any], out: TextIO) -> None:
    """One line an item, its attributes (a mapping's values) named by ``columns``; numbers with all their digits."""

    def held(item: Any, name: str) -> Any:
        return item.get(name) if isinstance(item, Mapping) else getattr(item, name)

    write_lines([columns, *([held(item, name) for name in columns] for item in items)], out)


def write_lines(lines: Iterable[Iterable[Any]], out: TextIO) -> None:
    """Lines of values; no text of them is a formula."""
    for line in lines:
        out.write(",".join(map(_field, line)) + "\n")


def _field(value: Any) -> str:
    """A value as a field. Quoted here, because csv.writer before Python 3.13 leaves a lone carriage return bare.

    Half a surrogate pair, which a model can produce, has no UTF-8 form: it is written as an escape.
    """
    if not isinstance(value, str):
        return "" if value is None else str(value)
    text = value.encode("utf-8", "backslashreplace").decode()
    if _FORMULA.match(text) and not _NUMBER.fullmatch(text):
        text = f"'{text}"
    return '"' + text.replace('"', '""') + '"' if set(text) & set(',"\r\n') else text
