r"""Tables in LaTeX: booktabs rules, siunitx columns, best bold, second underlined.

For a preamble with ``booktabs``, ``siunitx`` (version 2 or 3), for wide tables ``graphicx`` and, for marks of
differences, ``amssymb``. Intervals are left out.
"""

import re
from collections.abc import Sequence
from typing import TextIO

from kvbench.report.formats.table import Figure, Report, Table, head_rows
from kvbench.support.text import printable

BETTER, WORSE, BLANK = "▲", "▼", "†"
"""Marks of differences, and of samples without a number."""
_SIGNS = {
    "\\": r"\textbackslash{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    BETTER: r"$^{\blacktriangle}$",
    WORSE: r"$^{\blacktriangledown}$",
    BLANK: r"\textsuperscript{\dag}",
}
MOST = 12
"""Columns of numbers of a table that is not scaled to the width of the page."""
_ESCAPES = str.maketrans(_SIGNS)
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?")

Shape = tuple[int, int]
"""Digits before and after the point of the widest number."""


def write_latex(report: Report, out: TextIO) -> None:
    """Write the tables of a report, one below the other; its other texts are comments."""
    comments = [[*filter(None, (*report.warnings, report.title, *report.head))], report.notes]
    head, notes = ("\n".join(f"% {escaped(text)}" for text in texts) for texts in comments)
    out.write("\n\n".join(filter(None, (head, *map(latex_text, report.tables), notes))) + "\n")


def latex_text(table: Table) -> str:
    """Return one ``table`` environment, after the errors as comments."""
    caption = f"{table.title[:1].upper()}{table.title[1:]}"
    words = table.words or "; ".join(table.caption)
    marks = r" \textbf{Bold}: best, \underline{underlined}: second." if table.is_ranked else ""
    tabular, text = _tabular(table), ": ".join(filter(None, (caption, words)))
    notes = [escaped(" ".join(table.notes).replace(table.about_aside, ""))] if table.notes else []
    return "\n".join(
        [
            *(f"% {escaped(error)}" for error in table.errors),
            r"\begin{table}[t]",
            r"\centering",
            *([rf"\caption{{{escaped(text)}.{marks}}}"] if text else []),
            r"\footnotesize\setlength{\tabcolsep}{4pt}\sisetup{detect-weight=true, mode=text}",
            *([r"\resizebox{\linewidth}{!}{%", *tabular, "}"] if len(table.heads) > MOST else tabular),
            *(rf"\par\smallskip {note}" for note in notes),
            r"\end{table}",
        ]
    )


def escaped(text: str) -> str:
    """Text in which LaTeX finds no commands."""
    return printable(text).translate(_ESCAPES)


def _label(text: str) -> str:
    """Return a label; [ and * at its start would belong to the line break before it."""
    label = escaped(text)
    return f"{{}}{label}" if label[:1] in ("[", "*") else label


def _figure(figure: Figure, shape: Shape | None) -> str:
    """Return a number for an S column, other text of it in braces; without a shape, a text."""
    note = escaped(figure.note.strip())
    if not figure.mean:
        return f"{{{note}}}" if note else ""
    small = rf" {{\,\scriptsize {note}}}" if note else ""
    mean = figure.mean if shape else escaped(figure.mean)
    if figure.best:
        return rf"\bfseries {mean}{small}"
    if figure.second:  # siunitx reads no underline; a box as wide as the widest number keeps it in line
        missing = shape[0] - len(mean.lstrip("-").partition(".")[0]) if shape else 0
        pad = rf"\phantom{{{'0' * missing}}}" if missing else ""
        return rf"{{{pad}\underline{{{mean}}}{small}}}"
    return mean + small


def _shape(means: Sequence[str]) -> Shape:
    parts = [mean.partition(".") for mean in means] or [("0", "", "")]
    return max(len(part[0]) for part in parts), max(len(part[2]) for part in parts)


def _tabular(table: Table) -> list[str]:
    """Heads that neighbours share over all of their columns, and a rule below the reference lines."""
    means = [[line.figures[i].mean for line in table.lines if line.figures[i].mean] for i in range(len(table.heads))]
    numeric = [all(map(_NUMBER.fullmatch, column)) for column in means]
    shape = _shape([mean for column, is_numeric in zip(means, numeric, strict=True) if is_numeric for mean in column])
    number = f"S[table-format={shape[0]}.{shape[1]}]"
    kinds = "".join(number if is_numeric else table.side(i) for i, is_numeric in enumerate(numeric))
    labels = "l" * len(table.labels)
    if table.labels and table.labels[-1] == "n":
        labels = f"{labels[:-1]}r"
    lines = [rf"\begin{{tabular}}{{{labels}{kinds}}}", r"\toprule"]
    for level, row in enumerate(head_rows(table.heads, table.groups)):
        cells = [f"{{{escaped(label.replace('_', ' ')) if level == 0 else ''}}}" for label in table.labels]
        rules, first = "", len(table.labels) + 1
        for text, span in row:
            head = escaped(text)
            cells.append(rf"\multicolumn{{{span}}}{{c}}{{{head}}}" if span > 1 else f"{{{head}}}")
            rules += rf"\cmidrule(lr){{{first}-{first + span - 1}}}" if span > 1 and head else ""
            first += span
        lines += [" & ".join(cells) + r" \\", *([rules] if rules else [])]
    lines.append(r"\midrule")
    for i, line in enumerate(table.lines):
        figures = (
            _figure(figure, shape if is_numeric else None)
            for figure, is_numeric in zip(line.figures, numeric, strict=True)
        )
        cells = [*map(_label, line.labels), *figures]
        lines += [*([r"\midrule"] if i and i in table.rules else []), " & ".join(cells) + r" \\"]
    return [*lines, r"\bottomrule", r"\end{tabular}"]
