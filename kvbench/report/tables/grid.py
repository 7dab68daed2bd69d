"""Tables of strings: as aligned text, as Markdown, as CSV.

Markdown is GitHub-flavoured (https://github.github.com/gfm/#tables-extension-). CSV is that of RFC 4180, with a bare
newline at the end of a line; a missing value is blank. A spreadsheet takes a text that begins with = + - or @ for a
formula, which may read files and send them away; such a text gets an apostrophe before it, which marks text in
spreadsheets (https://owasp.org/www-community/attacks/CSV_Injection). A text that is a number stays as it is. The JSON
formats are lossless.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from rich.console import Console
from rich.text import Text

from kvbench.support.text import printable

_MARKUP = re.compile(r"[\\`*<|~]|\](?=[(\[:])|&(?=#?\w+;)|(?<![^\W_])_|_(?![^\W_])")
r"""Characters that are always markup; ] before what makes it a link; & of an entity; _ at the edge of a word."""
_FORMULA = re.compile(r"[\s\x00]*[=+\-@\uff1d\uff0b\uff0d\uff20]|[\t\r]")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


@dataclass(frozen=True)
class Grid:
    """Heads and lines of one table. ``align``: "l" or "r" for each column."""

    heads: Sequence[str]
    lines: Sequence[Sequence[str]]
    align: str

    def padded(self) -> list[list[str]]:
        """Heads, then lines, each text as wide as its column."""
        grid = [self.heads, *self.lines]
        widths = [max(map(len, column)) for column in zip(*grid, strict=True)]
        return [
            [
                text.ljust(width) if side == "l" else text.rjust(width)
                for text, width, side in zip(line, widths, self.align, strict=True)
            ]
            for line in grid
        ]

    def parts(self, labels: int, width: int) -> list["Grid"]:
        """This grid, split where its columns do not fit into ``width`` beside the first ``labels`` columns."""
        sizes = [len(text) + 2 for text in self.padded()[0]]
        parts: list[list[int]] = [list(range(labels))]
        for column in range(labels, len(sizes)):
            if len(parts[-1]) > labels and sum(sizes[i] for i in (*parts[-1], column)) > width + 2:
                parts.append(list(range(labels)))
            parts[-1].append(column)
        return [
            Grid(
                [self.heads[i] for i in columns],
                [[line[i] for i in columns] for line in self.lines],
                "".join(self.align[i] for i in columns),
            )
            for columns in parts
        ]

    def print(self, console: Console) -> None:
        """Print aligned columns, the heads in bold."""
        for number, line in enumerate(self.padded()):
            console.print(Text("  ".join(line).rstrip(), style="" if number else "bold"), soft_wrap=True)

    def markdown(self) -> list[str]:
        """The lines of a Markdown table."""
        return markdown_table(*([list(map(escaped, line)) for line in (self.heads, *self.lines)]), align=self.align)


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


def write_csv(columns: Sequence[str], items: Iterable[Any], out: TextIO) -> None:
    """One line per item: its attributes (the values of a mapping) named by ``columns``, numbers with all digits."""

    def value(item: Any, name: str) -> Any:
        return item.get(name) if isinstance(item, Mapping) else getattr(item, name)

    write_lines([columns, *([value(item, name) for name in columns] for item in items)], out)


def write_json(value: Any, out: TextIO) -> None:
    """A value as JSON. Raises ValueError for NaN and infinity."""
    json.dump(value, out, indent=1, allow_nan=False)
    out.write("\n")


def write_lines(lines: Iterable[Iterable[Any]], out: TextIO) -> None:
    """Lines of values as CSV; none of their texts is a formula."""
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
