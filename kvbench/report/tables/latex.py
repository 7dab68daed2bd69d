r"""A sheet as a LaTeX table, through pandas' Styler: booktabs rules, siunitx columns, best bold, second underlined.

For a preamble with ``booktabs``, ``siunitx`` (version 2 or 3) and, for marks of differences, ``amssymb``. Intervals are
left out; the caption gives the width of the widest.
"""

from collections.abc import Sequence

import pandas
from pandas.io.formats.style import Styler

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
_APART = "\u200b"  # no width
_ESCAPES = str.maketrans(_SIGNS)


def latex_text(sheet: Sheet) -> str:
    """One ``table`` environment."""
    shape = _shape([figure.mean for line in sheet.lines for figure in line.figures if figure.mean])
    levels = [i for i in range(3) if any(head[i] for head in sheet.heads)] or [0]
    columns = [(escaped(label.replace("_", " ")), *("" for _ in levels[1:])) for label in sheet.labels]
    columns += [tuple(escaped(head[i]) for i in levels) for head in sheet.heads]
    body = [[*map(_label, line.labels), *(_figure(figure, shape) for figure in line.figures)] for line in sheet.lines]
    levelled = [pandas.Index(level) for level in zip(*_distinct(columns), strict=True)]
    index = pandas.MultiIndex.from_arrays(levelled) if len(levels) > 1 else levelled[0]
    style = Styler(pandas.DataFrame(body, columns=index))
    kinds = "l" * (len(sheet.labels) - 1) + "r" + f"S[table-format={shape[0]}.{shape[1]}]" * len(sheet.heads)
    style.hide(axis="index")
    style.format_index(lambda text: text.rstrip(_APART), axis="columns")
    tabular = style.to_latex(column_format=kinds, hrules=True, siunitx=True, sparse_columns=False)
    metric = sheet.caption.partition(": mean [")[0]
    words = [f"{sheet.title[:1].upper()}{sheet.title[1:]}: {metric}, means of n samples"]
    words += [f"95 % intervals reach {sheet.margin} to either side at most"] if sheet.margin else []
    if BETTER in sheet.caption:
        words += [sheet.caption[sheet.caption.index(BETTER) :]]
    is_ranked = any(figure.best for line in sheet.lines for figure in line.figures)
    marks = r" \textbf{Bold}: best, \underline{underlined}: second." if is_ranked else ""
    notes = [escaped(" ".join([*sheet.notes, *sheet.errors]))] if sheet.notes or sheet.errors else []
    return "\n".join(
        [
            r"\begin{table}[t]",
            r"\centering",
            rf"\caption{{{escaped('. '.join(words))}.{marks}}}",
            r"\footnotesize\setlength{\tabcolsep}{4pt}\sisetup{detect-weight=true, mode=text}",
            _ruled(tabular, [line.reference for line in sheet.lines]),
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


def _distinct(heads: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Heads made distinct, as a Styler needs them, with spaces of no width, which `latex_text` removes again."""
    counts: dict[tuple[str, ...], int] = {}
    distinct = []
    for head in heads:
        distinct.append((*head[:-1], head[-1] + _APART * counts.setdefault(head, 0)))
        counts[head] += 1
    return distinct


def _ruled(tabular: str, references: Sequence[bool]) -> str:
    """A rule between the reference lines and the lines compared with them."""
    lines = tabular.rstrip().split("\n")
    first = lines.index(r"\midrule") + 1
    for i in reversed(range(len(references) - 1)):
        if references[i] and not references[i + 1]:
            lines.insert(first + i + 1, r"\midrule")
    return "\n".join(lines)
