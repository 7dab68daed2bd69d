"""A sheet as a GitHub-flavoured Markdown table (https://github.github.com/gfm/#tables-extension-)."""

import re

from kvbench.report.tables.sheet import Figure, Sheet
from kvbench.support.printable import printable

_MARKUP = re.compile(r"[\\`*<|~]|\](?=[(\[:])|&(?=#?\w+;)|(?<![^\W_])_|_(?![^\W_])")
r"""Signs that are always markup; ] before what makes it a link; & of an entity; _ at the edge of a word."""


def markdown_lines(sheet: Sheet) -> list[str]:
    """Title, caption, table, notes and errors of one sheet; best values in bold, column heads on several lines."""
    heads = ["<br>".join(escaped(text) for text in head if text) for head in sheet.heads]
    timed = any(line.evict for line in sheet.lines)
    top = [*map(escaped, sheet.labels), *heads, *(["evict"] if timed else [])]
    rule = [":--"] * len(sheet.labels) + ["--:"] * (len(heads) + timed)
    out = [f"**{escaped(sheet.title)}**", "", escaped(sheet.caption.replace("* best", "bold is best")), ""]
    out += [markdown_line(top), markdown_line(rule)]
    for line in sheet.lines:
        figures = [_figure(figure) for figure in line.figures]
        out.append(markdown_line([*map(escaped, line.labels), *figures, *([line.evict] if timed else [])]))
    if sheet.notes:
        out += ["", escaped(" ".join(sheet.notes))]
    if sheet.errors:
        out += ["", escaped(sheet.errors[0]), "", *(f"- {escaped(error)}" for error in sheet.errors[1:])]
    return out


def _figure(figure: Figure) -> str:
    text = escaped(str(figure))
    return f"**{figure.mean}**{text[len(figure.mean) :]}" if figure.best else text


def markdown_line(items: list[str]) -> str:
    """One line of a table from texts that are escaped."""
    return "| " + " | ".join(items) + " |"


def escaped(text: str) -> str:
    """Text of one line that no Markdown reader takes for markup: HTML, emphasis, code, links, tables, entities."""
    return _MARKUP.sub(r"\\\g<0>", printable(text))
