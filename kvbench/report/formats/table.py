"""Content of a report, before anything is aligned, escaped or coloured: its tables, and the texts around them.

Every report goes the same way: rows to records, records to a `Table` or several, these to a `Report`, and that through
`kvbench.report.formats.emit` into the format that was asked for.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any


@dataclass(frozen=True)
class Figure:
    """One number or text of a table. ``low high`` are empty without an interval; everything is empty without a value.

    ``note``: what sets it apart: another number of samples, only errors, a footnote. ``best second``: its rank in what
    it competes with. ``tone``: "good" or "bad" news, or "" for neither.
    """

    mean: str = ""
    low: str = ""
    high: str = ""
    note: str = ""
    best: bool = False
    second: bool = False
    tone: str = ""

    def __str__(self) -> str:
        interval = f"[{self.low}, {self.high}]" if self.low else ""
        return " ".join(filter(None, (self.mean, interval, self.note)))


@dataclass(frozen=True)
class TableRow:
    """A label for each of the table's ``labels``, a figure for each of its ``heads``, and what stands beside them.

    ``reference``: what others are held against, not one of them.
    """

    labels: tuple[str, ...]
    figures: tuple[Figure, ...]
    aside: str = ""
    reference: bool = False

    @classmethod
    def of(cls, labels: Sequence[str], texts: Sequence[str]) -> "TableRow":
        """Return a line whose figures are plain texts."""
        return cls(tuple(labels), tuple(map(Figure, texts)))


@dataclass(frozen=True, kw_only=True)
class Table:
    """One table. ``heads`` has the texts of one column of figures from top to bottom, all of one length.

    Neighbours that share the first ``groups`` of them show these once. ``rules``: how many lines stand above each rule.
    ``align``: "l" or "r" for each column of figures, "" for "r" throughout. ``aside``: the head of a last column that
    is no result; printed tables (LaTeX) go without it, ``about_aside`` (what notes say of it), errors and intervals:
    ``words`` is their caption.
    ``competition``: in what the best figures are best ("of its column"). ``seconds``: text and Markdown mark the second
    too, as LaTeX and HTML always do.
    """

    title: str = ""
    caption: tuple[str, ...] = ()
    words: str = ""
    competition: str = ""
    seconds: bool = False
    labels: tuple[str, ...]
    heads: tuple[tuple[str, ...], ...]
    lines: tuple[TableRow, ...]
    notes: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    aside: str = ""
    about_aside: str = ""
    align: str = ""
    groups: int = 0
    rules: tuple[int, ...] = ()

    @classmethod
    def of(cls, labels: Sequence[str], heads: Sequence[str], lines: Sequence[TableRow], **others: Any) -> "Table":
        """Return a table with one line of heads."""
        return cls(labels=tuple(labels), heads=tuple((head,) for head in heads), lines=tuple(lines), **others)

    def side(self, column: int) -> str:
        """Return where the texts of a column of figures stand: "l" or "r"."""
        return self.align[column] if self.align else "r"

    @property
    def is_ranked(self) -> bool:
        """Whether a figure is marked as the best."""
        return any(figure.best for line in self.lines for figure in line.figures)

    def caption_with(self, best: str, second: str) -> str:
        """Return the caption, with what marks the best and the second figures after its first part."""
        marks = f"{best} {self.competition}{f', {second}' if self.seconds else ''}" if self.is_ranked else ""
        return "; ".join(filter(None, (*self.caption[:1], marks, *self.caption[1:])))


@dataclass(frozen=True, kw_only=True)
class Report:
    """A page: warnings, a title, lines below it, tables, notes below them; and the same for programs.

    ``records``: one for each line of CSV, and of JSON where there is no ``tree``; ``columns``: of CSV, by default all
    names. ``width``: columns of the tables' text that goes to no terminal; None: as many as they need.
    """

    warnings: tuple[str, ...] = ()
    title: str = ""
    head: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()
    records: Sequence[Mapping[str, Any]] = ()
    columns: Sequence[str] | None = None
    tree: Mapping[str, Any] = field(default_factory=dict)
    width: int | None = None


def runs(heads: Sequence[Sequence[str]], level: int, groups: int) -> Iterator[Sequence[int]]:
    """Yield the places of neighbours that share their heads down to this level; beyond `groups` levels, each alone."""
    start = 0
    for _, members in groupby(range(len(heads)), lambda i: tuple(heads[i][: level + 1]) if level < groups else i):
        yield range(start, start := start + len(list(members)))


def head_rows(heads: Sequence[Sequence[str]], groups: int) -> list[list[tuple[str, int]]]:
    """Return the levels of heads that say anything: each head, and how many columns share it."""
    levels = [level for level in range(len(heads[0]) if heads else 0) if any(head[level] for head in heads)] or [0]
    return [[(heads[run[0]][level], len(run)) for run in runs(heads, level, groups)] for level in levels]
