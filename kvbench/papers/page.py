"""Three tables in the paper's layout (ours, published, their difference), and their text in every format.

A difference is shown only for the paper's model and protocol, if every sample has a value.
"""

import io
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO, TypeVar

from kvbench.papers import FORMATS
from kvbench.papers.item import ARMS, Item
from kvbench.papers.numbers import AVERAGE, WORDS, At, Measured, Placed, Published, averages, places
from kvbench.report.output import check_format, text_to
from kvbench.report.tables.grid import escaped, write_lines
from kvbench.report.tables.latex import escaped as latex_escaped
from kvbench.report.tables.latex import latex_text
from kvbench.report.tables.sheet import Figure, Sheet, SheetLine
from kvbench.report.tables.summary import budget_key
from kvbench.report.tables.table import markdown_lines, print_sheets
from kvbench.support.text import printable

Place = tuple[At, bool]
"""A place of a layout, and whether it is the average of its line: its column values are then empty."""
T = TypeVar("T")
WIDTH = 120
LEVELS = 3
"""Lines that the head of a sheet has."""
FULL = "full"
MARKS = "abcdefghijklmnopqrstuvwxyz"
PERCENT = "percent"


@dataclass(frozen=True)
class PageNumber:
    """The numbers at one place of the layout; an average has `average` as its first column value."""

    at: At
    ours: Measured | None
    published: Published | None
    difference: float | None


@dataclass(frozen=True)
class Page:
    """One item as rendered; `numbers` are its places, for machines."""

    item: Item
    head: tuple[str, ...]
    ours: Sheet | None
    published: Sheet | None
    difference: Sheet | None
    notes: tuple[str, ...]
    numbers: tuple[PageNumber, ...]
    smoke: bool

    @property
    def sheets(self) -> list[Sheet]:
        """The tables that have numbers."""
        return [sheet for sheet in (self.ours, self.published, self.difference) if sheet is not None]


def page(
    item: Item,
    printed: Sequence[Published],
    cells: Sequence[Placed] = (),
    computed: Mapping[At, Measured] | None = None,
    remarks: Sequence[str] = (),
    smoke: bool = False,
) -> Page:
    """The page of an item: printed numbers, the means of its cells, and numbers that formulas or a probe `computed`."""
    numbers = _Numbers(item, printed, cells, computed or {}, smoke)
    sheets = _Sheets(item, numbers.order)
    unit, differences = numbers.unit, numbers.differences
    flags = {flag: MARKS[place % 26] for place, flag in enumerate(dict.fromkeys(n.flag for n in printed if n.flag))}
    caption = "tasks on which one of a pair has the higher mean"
    if not item.layout.wins:
        caption = ("from formulas" if item.kind == "costs" else "mean [95 % interval]") + _unit_suffix(unit)
    printed_caption = caption if item.layout.wins else "as printed" + _unit_suffix(unit)
    counts = [number.n for (_, mean), number in numbers.ours.items() if not mean]
    usual = max(set(counts), key=counts.count) if counts else 0
    ours = {place: _figure(number, unit, usual) for place, number in numbers.ours.items()}
    theirs = {place: Figure(n.value, note=flags.get(n.flag, "")) for place, n in numbers.theirs.items()}
    signed = {place: Figure(f"{'+' * (value >= 0)}{_written(value, unit)}") for place, value in differences.items()}
    flag_notes = [f"{mark}: {flag.replace('_', ' ')}" for flag, mark in flags.items()]
    return Page(
        item=item,
        head=(item.title, *_head(cells, numbers.ours, smoke)),
        ours=sheets.sheet("ours", caption, ours),
        published=sheets.sheet("published", printed_caption, theirs, flag_notes),
        difference=sheets.sheet("difference", "ours - published" + _unit_suffix(unit), signed),
        notes=(*remarks, *_notes(item, cells, numbers)),
        numbers=numbers.by_place(),
        smoke=smoke,
    )


class _Numbers:
    """The numbers of a page by place, in the paper's order and then ours."""

    def __init__(
        self,
        item: Item,
        printed: Sequence[Published],
        cells: Sequence[Placed],
        computed: Mapping[At, Measured],
        smoke: bool,
    ) -> None:
        rows, no_columns = len(item.layout.rows), ("",) * len(item.layout.cols)
        ours = {(at, False): number for at, number in {**places(item, cells, smoke), **computed}.items()}
        ours |= {((*line, *no_columns), True): number for line, number in averages(item, cells, smoke).items()}
        theirs = {
            ((*number.at[:rows], *no_columns) if number.average else number.at, number.average): number
            for number in printed
        }
        self.item = item
        self.ours, self.theirs = _spread(item, ours), _spread(item, theirs)
        self.order: list[Place] = list(dict.fromkeys([*self.theirs, *self.ours]))
        self.unit = next((number.unit for number in printed), item.layout.unit)
        self.differences: dict[Place, float] = {}
        for place in self.order:
            difference = _difference(self.ours.get(place), self.theirs.get(place))
            if difference is not None:
                self.differences[place] = difference

    def by_place(self) -> tuple[PageNumber, ...]:
        rows = len(self.item.layout.rows)
        average = (AVERAGE, *("" for _ in self.item.layout.cols[1:]))
        return tuple(
            PageNumber(
                at=(*at[:rows], *average) if mean else at,
                ours=self.ours.get((at, mean)),
                published=self.theirs.get((at, mean)),
                difference=self.differences.get((at, mean)),
            )
            for at, mean in self.order
        )


def _spread(item: Item, numbers: Mapping[Place, T]) -> dict[Place, T]:
    """The full cache has no arms: its number goes into every column that differs from its own by an arm alone."""
    rows, cols = len(item.layout.rows), item.layout.cols
    columns = list(dict.fromkeys(at[rows:] for at, mean in numbers if not mean and FULL not in at))
    spread: dict[Place, T] = {}
    for (at, mean), number in numbers.items():
        alike = [
            column
            for column in columns
            if all(key in ARMS or a == b for key, a, b in zip(cols, at[rows:], column, strict=True))
        ]
        if FULL in at and not mean and alike:
            spread |= {((*at[:rows], *column), mean): number for column in alike}
        else:
            spread[at, mean] = number
    return spread


def _difference(ours: Measured | None, theirs: Published | None) -> float | None:
    """Ours - published; None if one is missing, the model or protocol differs, or a sample has failed."""
    if ours is None or theirs is None or ours.mean is None or ours.differs or ours.failed:
        return None
    try:
        return _scaled(ours, ours.mean, theirs.unit) - float(theirs.value)
    except ValueError:
        return None


def _head(cells: Sequence[Placed], ours: Mapping[Place, Measured], smoke: bool) -> list[str]:
    """The measured model and the number of samples."""
    if not cells:
        return []
    counts = sorted({number.n for number in ours.values() if number.mean is not None})
    n = f"n = {counts[0]}{f' to {counts[-1]}' if len(counts) > 1 else ''} a number" if counts else "no number yet"
    line = f"model {', '.join(dict.fromkeys(cell.model for cell in cells))}; {n}."
    if smoke:
        return [f"SMOKE: ours: {line} It shows that the table can be made, not what the paper's model does."]
    return [f"Ours: {line}"]


def _unit_suffix(unit: str) -> str:
    return "" if unit in ("", *WORDS) else f", {unit}"


def _scaled(number: Measured, value: float, unit: str) -> float:
    return 100 * value if number.rate and unit in (PERCENT, "") else value


def _written(value: float, unit: str, rounded: bool = False) -> str:
    """Percentages with two decimals (none if `rounded`), other numbers with four digits."""
    return f"{value:.{0 if rounded else 2}f}" if unit in (PERCENT, "") else f"{value:.4g}"


def _figure(number: Measured, unit: str, usual: int) -> Figure:
    """A number as papers print it, with its n if that is not the `usual` one, and with missing cells."""
    note = "" if number.n == usual else f"n={number.n}"
    if number.failed:
        note += f" {number.failed} failed"
    if number.mean is None:
        missing = f"{number.missing} of {number.cells} cells missing"
        return Figure(note=missing if number.cells > 1 else note or "missing")
    low, high = (
        "" if end is None or not math.isfinite(end) else _written(_scaled(number, end, unit), unit, number.rate)
        for end in (number.low, number.high)
    )
    return Figure(_written(_scaled(number, number.mean, unit), unit), low, high, note.strip())


def _notes(item: Item, cells: Sequence[Placed], numbers: _Numbers) -> list[str]:
    notes = list(item.notes)
    differs = list(dict.fromkeys(text for cell in cells for text in cell.differs))
    if differs:
        notes.append(f"Differs from the paper's protocol: {'; '.join(differs)}.")
    if numbers.ours and numbers.theirs and not numbers.differences:
        other = any(number.differs for number in numbers.ours.values())
        reason = "model or protocol differ" if other else "no place of the layout has both numbers"
        notes.append(f"No difference is shown: {reason}.")
    printed = [number for number in numbers.theirs.values() if number.unit not in WORDS]
    protocols = list(dict.fromkeys(number.protocol for number in printed if number.protocol))
    if protocols and "protocol" not in item.keys:
        notes.append("The paper's protocol: " + " | ".join(protocols[:4]) + ("; ..." if len(protocols) > 4 else "."))
    if item.sources:
        notes.append("Settings from: " + "; ".join(f"{key}: {source}" for key, source in item.sources.items()) + ".")
    return notes


class _Sheets:
    """Makes tables with the same order of lines and columns."""

    def __init__(self, item: Item, order: Sequence[Place]) -> None:
        self._rows, self._cols = item.layout.rows, item.layout.cols
        self._lines = list(dict.fromkeys(at[: len(self._rows)] for at, _ in order))
        models = [] if "model" not in self._rows else [line[self._rows.index("model")] for line in self._lines]
        self._lines.sort(key=lambda line: FULL not in line)
        if "budget" in self._rows:  # our budgets may differ from the paper's
            self._lines.sort(key=lambda line: (FULL not in line, budget_key(line[self._rows.index("budget")])))
        if models:  # each model with its full cache
            self._lines.sort(key=lambda line: models.index(line[self._rows.index("model")]))
        self._columns = list(dict.fromkeys((at[len(self._rows) :], mean) for at, mean in order))
        self._columns.sort(key=self._rank)

    def _rank(self, column: Place) -> tuple[object, ...]:
        """Averages last; numbers by size; names in the paper's order (the sort is stable)."""
        ranks: list[object] = [column[1]]
        for key, value in zip(self._cols, column[0], strict=True):
            if key == "context_length":
                ranks.append((float(value or 0),))
            else:
                ranks.append(budget_key(value) if key == "budget" and value else (False, 0.0, ""))
        return tuple(ranks)

    def sheet(
        self, title: str, caption: str, figures: Mapping[Place, Figure], notes: Sequence[str] = ()
    ) -> Sheet | None:
        """The lines and columns that have a number; None if there are none."""
        if not figures:
            return None
        rows = len(self._rows)
        used_lines, used_columns = {at[:rows] for at, _ in figures}, {(at[rows:], mean) for at, mean in figures}
        lines = [line for line in self._lines if line in used_lines]
        columns = [column for column in self._columns if column in used_columns]
        labels = [place for place in range(rows) if any(line[place] for line in lines)]
        return Sheet(
            title=title,
            caption=caption,
            labels=tuple(self._rows[place] for place in labels),
            heads=tuple(self._head(column, mean) for column, mean in columns),
            lines=tuple(
                SheetLine(
                    tuple(line[place] for place in labels),
                    FULL in line,
                    tuple(figures.get(((*line, *column), mean), Figure()) for column, mean in columns),
                )
                for line in lines
            ),
            notes=tuple(notes),
            errors=(),
            margin="",
        )

    def _head(self, column: At, mean: bool) -> At:
        levels = [AVERAGE] if mean else [_column_head(*pair) for pair in zip(self._cols, column, strict=True)]
        return (*levels, *("" for _ in range(LEVELS - len(levels))))


def _column_head(key: str, value: str) -> str:
    if key == "context_length" and value:
        return f"{value} tokens"
    if key == "budget" and not value:
        return AVERAGE
    return value.rpartition("/")[2] if key == "task" else value


def write_page(page: Page, format: str, out: TextIO | Path, table: Callable[[TextIO], object] | None = None) -> None:
    """Write a page and below it a `table` of ours; ``csv`` and ``json`` are the table alone, if there is one.

    Without a table ``csv`` has one line per place of the layout. Raises UserError for an unknown format.
    """
    if table is None:
        check_format(format, tuple(FORMATS))
    with text_to(out) as stream:
        if table is None or format in ("text", "markdown"):
            stream.write(_WRITERS[format](page))
        if table is not None:
            stream.write({"text": "\nours\n\n", "markdown": "\n**ours**\n\n"}.get(format, ""))
            table(stream)


def _text(page: Page) -> str:
    head = "".join(f"{line}\n" for text in page.head for line in textwrap.wrap(printable(text), WIDTH))
    wrapped = (textwrap.wrap(printable(note), WIDTH, subsequent_indent="  ") for note in page.notes)
    notes = "".join(f"{line}\n" for lines in wrapped for line in lines)
    tables = io.StringIO()
    print_sheets(page.sheets, tables, WIDTH)
    return "\n".join([head, tables.getvalue(), *([notes] if notes else [])])


def _markdown(page: Page) -> str:
    first, *rest = page.head
    lines = [f"# {escaped(first)}", "", *(line for text in rest for line in (f"*{escaped(text)}*", ""))]
    for sheet in page.sheets:
        lines += [*markdown_lines(sheet), ""]
    return "\n".join([*lines, *(f"- {escaped(note)}" for note in page.notes)]) + "\n"


def _latex(page: Page) -> str:
    head, notes = ("\n".join(f"% {latex_escaped(line)}" for line in lines) for lines in (page.head, page.notes))
    return "\n\n".join([head, *map(latex_text, page.sheets), notes]) + "\n"


def _csv(page: Page) -> str:
    names = ["ours", "low", "high", "n", "published", "unit", "flag", "difference", "differs"]
    lines: list[list[Any]] = [["item", "smoke", *page.item.keys, *names]]
    for number in page.numbers:
        ours, printed = number.ours, number.published
        mine = [None] * 4 if ours is None else [ours.mean, ours.low, ours.high, ours.n]
        theirs = [""] * 3 if printed is None else [printed.value, printed.unit, printed.flag]
        differs = "" if ours is None else "; ".join(ours.differs)
        lines.append([page.item.name, page.smoke, *number.at, *mine, *theirs, number.difference, differs])
    text = io.StringIO()
    write_lines(lines, text)
    return text.getvalue()


_WRITERS = {"text": _text, "markdown": _markdown, "latex": _latex, "csv": _csv}
