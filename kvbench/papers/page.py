"""The page of an item: three tables in the paper's layout (ours, published, their difference), and what they need said.

A difference is shown only for the paper's model and protocol, if every sample has a value.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvbench.papers.item import WORDS, At, Item, Published
from kvbench.papers.labels import names_of, printed_name
from kvbench.papers.numbers import Measured, Placed, differences, numbers_of
from kvbench.papers.published import number_of
from kvbench.papers.tables import FULL, Tables, ranked, spread
from kvbench.report.formats.table import Figure, Report, Table
from kvbench.support.grouped import grouped

WIDTH = 140
MARKS = "abcdefghijklmnopqrstuvwxyz"
PERCENT = "percent"


@dataclass(frozen=True)
class PageNumber:
    """The numbers at one place of the layout."""

    at: At
    ours: Measured | None
    published: Published | None
    difference: float | None


@dataclass(frozen=True)
class Page:
    """One item as rendered: the tables that have numbers (ours, published, difference), and its places for machines."""

    item: Item
    head: tuple[str, ...]
    tables: tuple[Table, ...]
    notes: tuple[str, ...]
    numbers: tuple[PageNumber, ...]
    smoke: bool

    def report(self, ours: Report | None = None) -> Report:
        """Return the page, below it the tables of `ours`, if the numbers of the item are a report of their own.

        For programs `ours` is all of it; without it there is one record for each place of the layout.
        """
        report = ours or Report(records=[*map(self._record, self.numbers)], columns=self._columns)
        below = (replace(table, title=": ".join(filter(None, ("ours", table.title)))) for table in report.tables)
        return Report(
            title=self.item.title,
            head=self.head,
            tables=(*self.tables, *below),
            notes=(*self.notes, *report.notes),
            records=report.records,
            columns=report.columns,
            width=WIDTH,
        )

    @property
    def _columns(self) -> tuple[str, ...]:
        ours, published = ("ours", "low", "high", "n"), ("published", "unit", "flag")
        return ("item", "smoke", *self.item.keys, *ours, *published, "difference", "differs")

    def _record(self, number: PageNumber) -> dict[str, Any]:
        ours, printed = number.ours, number.published
        own = [None] * 4 if ours is None else [ours.mean, ours.low, ours.high, ours.n]
        theirs = [""] * 3 if printed is None else [printed.value, printed.unit, printed.flag]
        differs = "" if ours is None else "; ".join(ours.differs)
        values = (self.item.name, self.smoke, *number.at, *own, *theirs, number.difference, differs)
        return dict(zip(self._columns, values, strict=True))


def page(
    item: Item,
    printed: Sequence[Published],
    cells: Sequence[Placed] = (),
    computed: Mapping[At, Measured] | None = None,
    remarks: Sequence[str] = (),
    smoke: bool = False,
) -> Page:
    """Return the page of an item: printed numbers, and the means of its cells or what is `computed` instead."""
    ours = spread(item, numbers_of(item, cells, smoke) if computed is None else computed)
    theirs = spread(item, {number.at: number for number in printed})
    order = list(dict.fromkeys([*theirs, *ours]))
    units = {number.unit for number in printed} or {item.layout.unit}
    unit = units.pop() if len(units) == 1 else ""
    differences = {each: _difference(ours.get(each), theirs.get(each)) for each in order}
    return Page(
        item=item,
        head=tuple(_head(cells, ours, smoke)),
        tables=tuple(_tables(item, order, unit, ours, theirs, differences)),
        notes=(*remarks, *_notes(item, cells, ours, theirs, any(each is not None for each in differences.values()))),
        numbers=tuple(PageNumber(each, ours.get(each), theirs.get(each), differences[each]) for each in order),
        smoke=smoke,
    )


def _difference(ours: Measured | None, theirs: Published | None) -> float | None:
    """Ours - published; None if one is missing, the model or protocol differs, or a sample has failed."""
    printed = None if theirs is None else number_of(theirs.value)
    if ours is None or ours.mean is None or ours.differs or ours.failed or theirs is None or printed is None:
        return None
    return _scaled(ours, ours.mean, theirs.unit) - printed


def _tables(
    item: Item,
    order: Sequence[At],
    unit: str,
    ours: Mapping[At, Measured],
    theirs: Mapping[At, Published],
    differences: Mapping[At, float | None],
) -> list[Table]:
    tables, in_unit = Tables(item, order), "" if unit in ("", *WORDS) else f", {unit}"
    suffix = in_unit
    if item.layout.against == FULL:
        suffix = f", as the difference to the {unit} of the full cache; the full cache stands with its {unit}"
    suffix += _budget_suffix(item, order)
    intervals = " [95 % interval]" if any(number.low is not None for number in ours.values()) else ""
    caption, words, printed = (
        item.layout.caption or f"{said}{suffix}"
        for said in (item.layout.ours + intervals, item.layout.ours, "as printed")
    )
    counts = [number.n for place, number in ours.items() if not item.is_average(place)]
    usual = max(set(counts), key=counts.count) if counts else 0
    means = {place: _figure(number, unit, usual) for place, number in ours.items()}
    whole = {place: float(means[place].mean) for place, number in ours.items() if number.is_whole}
    signed = {
        place: Figure(f"{'+' * (value >= 0)}{_written(value, unit)}")
        for place, value in differences.items()
        if value is not None
    }
    shown = (
        tables.table("ours", caption, ranked(item, means, whole), words=words),
        _published_table(item, tables, printed, theirs),
        tables.table("difference", f"ours - published{in_unit}", signed),
    )
    return [table for table in shown if table is not None]


def _budget_suffix(item: Item, order: Sequence[At]) -> str:
    """Return the unit of budgets that are no percentages."""
    if "budget" not in item.keys:
        return ""
    budgets = {place[item.keys.index("budget")] for place in order if not item.is_average(place)}
    is_bare = any(printed_name(names_of(item), "budget", budget).isdecimal() for budget in budgets)
    return "; budget in tokens" if is_bare else ""


def _published_table(item: Item, tables: Tables, caption: str, theirs: Mapping[At, Published]) -> Table | None:
    """Return the printed numbers. A flag is marked at what shares it: every number (none is marked), a line, a column
    or one number.
    """
    flags = {place: number.flag.replace("_", " ") for place, number in theirs.items()}
    ordered = [flag for flag in dict.fromkeys(flags.values()) if flag]
    is_shared = len(set(flags.values())) == 1
    marks = {flag: "" if is_shared else f"({MARKS[i % 26]})" for i, flag in enumerate(ordered)} | {"": ""}
    lines, columns = _shared(flags, item.line), dict[At, str]()
    if not lines:
        columns = _shared({at: flag for at, flag in flags.items() if FULL not in item.line(at)}, item.column)
    units = len({number.unit for number in theirs.values()} - {*WORDS}) > 1
    figures = {}
    for at, number in theirs.items():
        is_said = flags[at] in (lines.get(item.line(at)), columns.get(item.column(at)))
        unit = number.unit if units and number.unit not in WORDS else ""
        figures[at] = Figure(number.value, note=" ".join(filter(None, (unit, "" if is_said else marks[flags[at]]))))
    notes = [f"{marks[flag] or 'all numbers'}: {flag}" for flag in ordered]
    values = {place: float(number.value) for place, number in theirs.items() if number.is_number}
    of_lines, of_columns = ({key: marks[flag] for key, flag in shared.items()} for shared in (lines, columns))
    return tables.table("published", caption, ranked(item, figures, values), notes, (of_lines, of_columns))


def _shared(flags: Mapping[At, str], key: Callable[[At], At]) -> dict[At, str]:
    """Return the commonest flag of each line or column of which all numbers have one, if several share it."""
    notes = {}
    for name, members in grouped(flags, key).items():
        own = [flags[place] for place in members]
        commonest = max(own, key=own.count)
        if all(own) and (own.count(commonest) > 1 or FULL in name):
            notes[name] = commonest
    return notes


def _scaled(number: Measured, value: float, unit: str) -> float:
    return 100 * value if number.rate and unit in (PERCENT, "") else value


def _written(value: float, unit: str, rounded: bool = False) -> str:
    """Percentages with two decimals (none if `rounded`), other numbers with four digits."""
    return f"{value:.{0 if rounded else 2}f}" if unit in (PERCENT, "") else f"{value:.4g}"


def _figure(number: Measured, unit: str, usual: int) -> Figure:
    """Return a number as papers print it, with its n if that is not the `usual` one, and with missing cells."""
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


def _head(cells: Sequence[Placed], ours: Mapping[At, Measured], smoke: bool) -> list[str]:
    """Return the measured model and the number of samples."""
    if not cells:
        return []
    counts = sorted({number.n for number in ours.values() if number.mean is not None})
    n = f"n = {counts[0]}{f' to {counts[-1]}' if len(counts) > 1 else ''} a number" if counts else "no number yet"
    line = f"model {', '.join(dict.fromkeys(cell.cell.model.label for cell in cells))}; {n}."
    if smoke:
        return [f"SMOKE: ours: {line} It shows that the table can be computed, not what the paper's model does."]
    return [f"Ours: {line}"]


def _notes(
    item: Item,
    cells: Sequence[Placed],
    ours: Mapping[At, Measured],
    theirs: Mapping[At, Published],
    has_difference: bool,
) -> list[str]:
    notes = list(item.remarks)
    if differs := differences(cells):
        notes.append(f"Differs from the paper's protocol: {'; '.join(differs)}.")
    if ours and theirs and not has_difference:
        other = any(number.differs for number in ours.values())
        reason = "model or protocol differ" if other else "no field of the table has both numbers"
        notes.append(f"No difference is shown: {reason}.")
    printed = [number for number in theirs.values() if number.unit not in WORDS]
    protocols = list(dict.fromkeys(number.protocol for number in printed if number.protocol))
    if protocols and "protocol" not in item.keys:
        notes.append("The paper's protocol: " + " | ".join(protocols[:4]) + ("; ..." if len(protocols) > 4 else "."))
    if item.sources:
        notes.append("Settings from: " + "; ".join(f"{key}: {source}" for key, source in item.sources.items()) + ".")
    return notes
