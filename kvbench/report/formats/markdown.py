"""Tables as GitHub-flavoured Markdown (https://github.github.com/gfm/#tables-extension-)."""

import re
from collections.abc import Sequence
from typing import TextIO

from kvbench.report.formats.table import Figure, Report, Table
from kvbench.support.text import printable

_MARKUP = re.compile(r"[\\`*<|~]|\](?=[(\[:])|&(?=#?\w+;)|(?<![^\W_])_|_(?![^\W_])")
r"""Characters that are always markup; ] before what makes it a link; & of an entity; _ at the edge of a word."""


def escaped(text: str) -> str:
    """Return a text of one line in which no Markdown reader finds HTML, emphasis, code, links, tables or entities."""
    return _MARKUP.sub(r"\\\g<0>", printable(text))


def write_markdown(report: Report, out: TextIO) -> None:
    """Write a report: warnings as quotes, the title as a heading, lines below it in italics, the notes as a list."""
    lines = [line for text in report.warnings for line in (f"> {escaped(text)}", "")]
    lines += [f"# {escaped(report.title)}", ""] if report.title else []
    lines += [line for text in report.head for line in (f"*{escaped(text)}*", "")]
    for table in report.tables:
        lines += [*table_lines(table), ""]
    out.write("\n".join([*lines, *(f"- {escaped(note)}" for note in report.notes)]).rstrip("\n") + "\n")


def table_lines(table: Table) -> list[str]:
    """Title, caption, table, notes and errors; best values in bold, column heads on several lines."""
    title = [f"**{escaped(table.title)}**", ""] if table.title else []
    caption = table.caption_with("bold is best", "underlined second")
    heads = ["<br>".join(escaped(text) for text in head if text) for head in table.heads]
    aside = bool(table.aside)
    grid = markdown_table(
        [*map(escaped, table.labels), *heads, *([escaped(table.aside)] * aside)],
        *(
            [*map(escaped, line.labels), *(_figure(each, table.seconds) for each in line.figures)]
            + [escaped(line.aside)] * aside
            for line in table.lines
        ),
        align="l" * len(table.labels) + "".join(map(table.side, range(len(heads)))) + "r" * aside,
    )
    notes = ["", escaped(" ".join(table.notes))] if table.notes else []
    first, others = table.errors[:1], table.errors[1:]
    errors = [line for text in first for line in ("", escaped(text), "")] + [f"- {escaped(error)}" for error in others]
    return [*title, *([escaped(caption), ""] if caption else []), *grid, *notes, *errors]


def markdown_table(heads: Sequence[str], *lines: Sequence[str], align: str) -> list[str]:
    """Return the lines of a Markdown table from texts that are escaped already."""
    rule = [":--" if side == "l" else "--:" for side in align]
    return ["| " + " | ".join(line) + " |" for line in (heads, rule, *lines)]


def _figure(figure: Figure, seconds: bool) -> str:
    text, mean = escaped(str(figure)), escaped(figure.mean)
    if figure.best or figure.tone:
        return f"**{mean}**{text[len(mean) :]}"
    return f"<ins>{mean}</ins>{text[len(mean) :]}" if figure.second and seconds else text
