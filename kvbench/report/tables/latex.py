r"""A sheet as a LaTeX table: booktabs rules, siunitx columns, best bold, second underlined.

For a preamble with ``booktabs``, ``siunitx`` (version 2 or 3), for wide tables ``graphicx`` and, for marks of
differences, ``amssymb``. Intervals are left out; the caption gives the width of the widest.
"""

from collections.abc import Sequence

from kvbench.report.tables.grid import head_rows
from kvbench.report.tables.sheet import BETTER, BLANK, WORSE, Figure, Sheet
from kvbench.support.text import printable

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


def latex_text(sheet: Sheet) -> str:
    """One ``table`` environment."""
    shape = _shape([figure.mean for line in sheet.lines for figure in line.figures if figure.mean])
    metric = sheet.caption.partition(": mean [")[0]
    words = [f"{sheet.title[:1].upper()}{sheet.title[1:]}: {metric}" + ", means of n samples" * ("n" in sheet.labels)]
    words += [f"95 % intervals reach {sheet.margin} to either side at most"] if sheet.margin else []
    if BETTER in sheet.caption:
        words += [sheet.caption[sheet.caption.index(BETTER) :]]
    is_ranked = any(figure.best for line in sheet.lines for figure in line.figures)
    marks = r" \textbf{Bold}: best, \underline{underlined}: second." if is_ranked else ""
    tabular = _tabular(sheet, shape)
    notes = [escaped(" ".join([*sheet.notes, *sheet.errors]))] if sheet.notes or sheet.errors else []
    return "\n".join(
        [
            r"\begin{table}[t]",
            r"\centering",
            rf"\caption{{{escaped('. '.join(words))}.{marks}}}",
            r"\footnotesize\setlength{\tabcolsep}{4pt}\sisetup{detect-weight=true, mode=text}",
            *([r"\resizebox{\linewidth}{!}{%", *tabular, "}"] if len(sheet.heads) > MOST else tabular),
            *(rf"\par\smallskip {note}" for note in notes),
            r"\end{table}",
        ]
    )


def escaped(text: str) -> str:
    """Text in which LaTeX finds no commands."""
    return printable(text).translate(_ESCAPES)


def _label(text: str) -> str:
    """A label; [ and * at its start would belong to the line break before it."""
    label = escaped(text)
    return f"{{}}{label}" if label[:1] in ("[", "*") else label


def _figure(figure: Figure, shape: tuple[int, int]) -> str:
    """A number for an S column; other text in braces."""
    note = escaped(figure.note.strip())
    if not figure.mean:
        return f"{{{note}}}" if note else ""
    small = rf" {{\,\scriptsize {note}}}" if note else ""
    if figure.best:
        return rf"\bfseries {figure.mean}{small}"
    if figure.second:  # siunitx reads no underline; a box as wide as the widest number keeps it in line
        missing = shape[0] - len(figure.mean.lstrip("-").partition(".")[0])
        pad = rf"\phantom{{{'0' * missing}}}" if missing else ""
        return rf"{{{pad}\underline{{{figure.mean}}}{small}}}"
    return figure.mean + small


def _shape(means: Sequence[str]) -> tuple[int, int]:
    """Digits before and after the point of the widest number."""
    parts = [mean.partition(".") for mean in means] or [("0", "", "")]
    return max(len(part[0]) for part in parts), max(len(part[2]) for part in parts)


def _tabular(sheet: Sheet, shape: tuple[int, int]) -> list[str]:
    """Heads that neighbours share over all of their columns, and a rule below the reference lines."""
    number = f"S[table-format={shape[0]}.{shape[1]}]"
    kinds = "l" * (len(sheet.labels) - 1) + ("l" if sheet.groups else "r") + number * len(sheet.heads)
    lines = [rf"\begin{{tabular}}{{{kinds}}}", r"\toprule"]
    for level, row in enumerate(head_rows(sheet.heads, sheet.groups)):
        cells = [f"{{{escaped(label.replace('_', ' ')) if level == 0 else ''}}}" for label in sheet.labels]
        rules, first = "", len(sheet.labels) + 1
        for text, span in row:
            head = escaped(text)
            cells.append(rf"\multicolumn{{{span}}}{{c}}{{{head}}}" if span > 1 else f"{{{head}}}")
            rules += rf"\cmidrule(lr){{{first}-{first + span - 1}}}" if span > 1 and head else ""
            first += span
        lines += [" & ".join(cells) + r" \\", *([rules] if rules else [])]
    lines.append(r"\midrule")
    for i, line in enumerate(sheet.lines):
        cells = [*map(_label, line.labels), *(_figure(figure, shape) for figure in line.figures)]
        lines += [*([r"\midrule"] if i in sheet.rules else []), " & ".join(cells) + r" \\"]
    return [*lines, r"\bottomrule", r"\end{tabular}"]
