"""Three tables in the paper's layout: ours, published, their difference.

A difference is shown only for the paper's model and protocol, if every sample has a value.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, NamedTuple, TypeVar

from kvbench.papers.item import ARMS, LABEL_HEADS, Item, is_host, label_keys, line_labels, names_of, printed_name
from kvbench.papers.numbers import AVERAGE, WORDS, At, Measured, Placed, Published, averages, places
from kvbench.report.formats.table import Figure, Report, Table, TableRow
from kvbench.report.tables.summary import budget_key
from kvbench.support.grouped import grouped
from kvbench.tasks.longbench_averages import CATEGORIES

Column = tuple[At, bool]
"""The values of the column keys, and whether it is the column of averages: its values are then empty."""
T = TypeVar("T")
WIDTH = 140
LEVELS = 3
"""Lines that the head of a table has."""
FULL = "full"
EVERYTHING = "1.0"
"""The budget of the full cache, as rows and as the papers' files have it."""
MARKS = "abcdefghijklmnopqrstuvwxyz"
PERCENT = "percent"


class Place(NamedTuple):
    """A place of a layout: the values of its row keys and of its column keys, and whether it is an average."""

    line: At
    column: At
    average: bool

    @property
    def is_full(self) -> bool:
        """Whether it is a number of the full cache, and no average."""
        return FULL in (*self.line, *self.column) and not self.average


@dataclass(frozen=True)
class PageNumber:
    """The numbers at one place of the layout; an average has `average` as its first column value."""

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
        others = () if ours is None else ours.tables
        below = tuple(replace(table, title=": ".join(filter(None, ("ours", table.title)))) for table in others)
        return Report(
            title=self.item.title,
            head=self.head,
            tables=(*self.tables, *below),
            notes=(*self.notes, *(() if ours is None else ours.notes)),
            records=[self._record(number) for number in self.numbers] if ours is None else ours.records,
            columns=self._columns if ours is None else ours.columns,
            width=WIDTH,
        )

    @property
    def _columns(self) -> tuple[str, ...]:
        ours, published = ("ours", "low", "high", "n"), ("published", "unit", "flag")
        return ("item", "smoke", *self.item.keys, *ours, *published, "difference", "differs")

    def _record(self, number: PageNumber) -> dict[str, Any]:
        ours, printed = number.ours, number.published
        own_values = [None] * 4 if ours is None else [ours.mean, ours.low, ours.high, ours.n]
        printed_values = [""] * 3 if printed is None else [printed.value, printed.unit, printed.flag]
        differs = "" if ours is None else "; ".join(ours.differs)
        values = (self.item.name, self.smoke, *number.at, *own_values, *printed_values, number.difference, differs)
        return dict(zip(self._columns, values, strict=True))


def page(
    item: Item,
    printed: Sequence[Published],
    cells: Sequence[Placed] = (),
    computed: Mapping[At, Measured] | None = None,
    remarks: Sequence[str] = (),
    smoke: bool = False,
) -> Page:
    """Return the page of an item: printed numbers, the means of its cells, and numbers that formulas or a probe
    `computed`.
    """
    numbers = _Numbers(item, printed, cells, computed or {}, smoke)
    tables = _Tables(item, numbers.order)
    unit, differences = numbers.unit, numbers.differences
    caption = words = printed_caption = "tasks on which one of a pair has the higher mean"
    if not item.layout.wins:
        suffix = _unit_suffix(unit)
        if item.layout.against == FULL:
            suffix = f", as the difference to the {unit} of the full cache; the full cache stands with its {unit}"
        suffix += _budget_suffix(item, numbers.order)
        intervals = any(number.low is not None for number in numbers.ours.values())
        means = "mean [95 % interval]" if intervals else "mean"
        caption, words = (f"{'from formulas' if item.kind == 'costs' else text}{suffix}" for text in (means, "mean"))
        printed_caption = "as printed" + suffix
    counts = [number.n for place, number in numbers.ours.items() if not place.average]
    usual = max(set(counts), key=counts.count) if counts else 0
    ours = {place: _figure(number, unit, usual) for place, number in numbers.ours.items()}
    whole = {place: float(ours[place].mean) for place, number in numbers.ours.items() if number.is_whole}
    ours = _ranked(item, ours, whole)
    signed = {place: Figure(f"{'+' * (value >= 0)}{_written(value, unit)}") for place, value in differences.items()}
    shown = (
        tables.table("ours", caption, ours, words=words),
        _published_table(tables, printed_caption, numbers),
        tables.table("difference", "ours - published" + _unit_suffix(unit), signed),
    )
    return Page(
        item=item,
        head=tuple(_head(cells, numbers.ours, smoke)),
        tables=tuple(table for table in shown if table is not None),
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
        rows, cols = len(item.layout.rows), item.layout.cols

        def place(at: At, average: bool = False) -> Place:
            return Place(at[:rows], ("",) * len(cols) if average else at[rows:], average)

        ours = {place(at): number for at, number in {**places(item, cells, smoke), **computed}.items()}
        ours |= {place(line, True): number for line, number in averages(item, cells, smoke).items()}
        theirs = {place(number.at, number.average): number for number in printed}
        self.item = item
        self.ours, self.theirs = _spread(ours, cols, ARMS), _spread(theirs, cols, ARMS)
        self.order: list[Place] = list(dict.fromkeys([*self.theirs, *self.ours]))
        units = {number.unit for number in printed} or {item.layout.unit}
        self.unit = units.pop() if len(units) == 1 else ""
        differences = {place: _difference(self.ours.get(place), self.theirs.get(place)) for place in self.order}
        self.differences = {place: number for place, number in differences.items() if number is not None}

    def by_place(self) -> tuple[PageNumber, ...]:
        return tuple(
            PageNumber(
                at=(*place.line, *((AVERAGE, *place.column[1:]) if place.average else place.column)),
                ours=self.ours.get(place),
                published=self.theirs.get(place),
                difference=self.differences.get(place),
            )
            for place in self.order
        )


def _spread(
    numbers: Mapping[Place, T], keys: Sequence[str], free: Collection[str], alone: bool = False
) -> dict[Place, T]:
    """Return the full cache has no value of a `free` key: its number goes into every column that differs in these
    alone.

    keys: of the columns. alone: only a number whose column has no other number.
    """
    columns = dict.fromkeys(place.column for place in numbers if not place.average and not place.is_full)
    spread: dict[Place, T] = {}
    for place, number in numbers.items():
        alike = [
            column
            for column in (columns if place.is_full and not (alone and place.column in columns) else ())
            if all(key in free or a == b for key, a, b in zip(keys, place.column, column, strict=True))
        ]
        spread |= {place._replace(column=column): number for column in alike or [place.column]}
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
    """Return the measured model and the number of samples."""
    if not cells:
        return []
    counts = sorted({number.n for number in ours.values() if number.mean is not None})
    n = f"n = {counts[0]}{f' to {counts[-1]}' if len(counts) > 1 else ''} a number" if counts else "no number yet"
    line = f"model {', '.join(dict.fromkeys(cell.model for cell in cells))}; {n}."
    if smoke:
        return [f"SMOKE: ours: {line} It shows that the table can be computed, not what the paper's model does."]
    return [f"Ours: {line}"]


def _unit_suffix(unit: str) -> str:
    return "" if unit in ("", *WORDS) else f", {unit}"


def _budget_suffix(item: Item, order: Sequence[Place]) -> str:
    """Return the unit of budgets that are no percentages."""
    if "budget" not in item.keys:
        return ""
    budgets = {(*place.line, *place.column)[item.keys.index("budget")] for place in order}
    is_bare = any(printed_name(names_of(item), "budget", budget).isdecimal() for budget in budgets)
    return "; budget in tokens" if is_bare else ""


def _published_table(tables: "_Tables", caption: str, numbers: "_Numbers") -> Table | None:
    """Return the printed numbers. A flag is marked at what shares it: every number (none is marked), a line, or one
    number.
    """
    flags = {place: number.flag.replace("_", " ") for place, number in numbers.theirs.items()}
    is_shared = len(set(flags.values())) == 1
    ordered = [flag for flag in dict.fromkeys(flags.values()) if flag]
    marks = {"": "", **{flag: "" if is_shared else f"({MARKS[i % 26]})" for i, flag in enumerate(ordered)}}
    shared: dict[tuple[str, At, bool], list[str]] = {}  # by line, and by column without the full cache
    for place, flag in flags.items():
        shared.setdefault(("line", place.line, False), []).append(flag)
        if FULL not in place.line:
            shared.setdefault(("column", place.column, place.average), []).append(flag)
    commonest = {key: max(members, key=members.count) for key, members in shared.items() if all(members)}
    marked = {key: marks[flag] for key, flag in commonest.items() if shared[key].count(flag) > 1 or FULL in key[1]}
    if any(kind == "line" for kind, *_ in marked):
        marked = {key: mark for key, mark in marked.items() if key[0] == "line"}
    units = len({number.unit for number in numbers.theirs.values()} - {*WORDS}) > 1
    figures = {}
    for place, number in numbers.theirs.items():
        mark, unit = marks[flags[place]], number.unit if units and number.unit not in WORDS else ""
        if mark in (marked.get(("line", place.line, False)), marked.get(("column", place.column, place.average))):
            mark = ""
        figures[place] = Figure(number.value, note=" ".join(filter(None, (unit, mark))))
    notes = [f"{marks[flag] or 'all numbers'}: {flag}" for flag in ordered]
    values = {place: float(number.value) for place, number in numbers.theirs.items() if number.is_number}
    figures = _ranked(numbers.item, figures, values)
    return tables.table("published", caption, figures, notes, marked)


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


def _ranked(item: Item, figures: Mapping[Place, Figure], values: Mapping[Place, float]) -> dict[Place, Figure]:
    """Return the figures with the best and the second among figures that differ in policy and score alone, as papers
    mark them.

    values: by place, as they are written. None is best if all are equal or one has no value; none is second if several
    are best or only two compete. The full cache does not compete.
    """
    ranked = dict(figures)
    is_counted = bool(item.layout.wins) or item.layout.relative is not None
    if item.layout.best == "none" or is_counted or item.kind in ("text", "times"):
        return ranked
    shared = [i for i, key in enumerate(item.keys) if key not in ("policy", "score")]
    competing = grouped(
        (place for place in figures if not place.is_full and FULL not in place.line),
        lambda place: (place.average, *((*place.line, *place.column)[i] for i in shared)),
    )
    for members in competing.values():
        order = sorted({values.get(place, math.nan) for place in members}, reverse=item.layout.best == "highest")
        if len(order) < 2 or any(map(math.isnan, order)):
            continue
        best = [place for place in members if values[place] == order[0]]
        has_second = len(best) == 1 and len(members) > 2
        second = [place for place in members if has_second and values[place] == order[1]]
        ranked |= {place: replace(figures[place], best=True) for place in best}
        ranked |= {place: replace(figures[place], second=True) for place in second}
    return ranked


def _notes(item: Item, cells: Sequence[Placed], numbers: _Numbers) -> list[str]:
    notes = list(item.notes)
    differs = list(dict.fromkeys(text for cell in cells for text in cell.differs))
    if differs:
        notes.append(f"Differs from the paper's protocol: {'; '.join(differs)}.")
    if numbers.ours and numbers.theirs and not numbers.differences:
        other = any(number.differs for number in numbers.ours.values())
        reason = "model or protocol differ" if other else "no field of the table has both numbers"
        notes.append(f"No difference is shown: {reason}.")
    printed = [number for number in numbers.theirs.values() if number.unit not in WORDS]
    protocols = list(dict.fromkeys(number.protocol for number in printed if number.protocol))
    if protocols and "protocol" not in item.keys:
        notes.append("The paper's protocol: " + " | ".join(protocols[:4]) + ("; ..." if len(protocols) > 4 else "."))
    if item.sources:
        notes.append("Settings from: " + "; ".join(f"{key}: {source}" for key, source in item.sources.items()) + ".")
    return notes


class _Tables:
    """Makes tables with the same order of lines and columns, in the words of the paper."""

    def __init__(self, item: Item, order: Sequence[Place]) -> None:
        self._rows, self._cols, self._names = item.layout.rows, item.layout.cols, names_of(item)
        self._is_text = item.kind == "text"
        self._lines = list(dict.fromkeys(place.line for place in order))
        leading = self._rows[: self._rows.index("policy")] if "policy" in self._rows else self._rows
        groups = [i for i, key in enumerate(leading) if key == "model" or ("policy" in self._rows and key != "budget")]
        first = {i: list(dict.fromkeys(line[i] for line in self._lines)).index for i in groups}

        def rank(line: At) -> tuple[Any, ...]:
            """Return each model, task, .. with its full cache first; budgets by size, as ours may differ from the
            paper's.
            """
            value = line[self._rows.index("budget")] if "budget" in self._rows else ""
            budget = (value != "", budget_key(value))
            return (*(first[i](line[i]) for i in groups), FULL not in line, budget)

        self._lines.sort(key=rank)
        self._columns = list(dict.fromkeys((place.column, place.average) for place in order))
        self._columns = sorted(self._columns, key=self._rank)

    def _rank(self, column: Column) -> tuple[object, ...]:
        """Averages last; numbers by size; names in the paper's order."""
        ranks: list[object] = [column[1], FULL not in column[0]]
        for i, (key, value) in enumerate(zip(self._cols, column[0], strict=True)):
            if key == "budget":
                ranks.append((not value, budget_key(value)))
            elif key == "context_length":
                ranks.append(float(value or 0))
            else:
                ranks.append([each[i] for each, _ in self._columns].index(value))
        return tuple(ranks)

    def table(
        self,
        title: str,
        caption: str,
        figures: Mapping[Place, Figure],
        notes: Sequence[str] = (),
        marked: Mapping[tuple[str, At, bool], str] | None = None,
        words: str = "",
    ) -> Table | None:
        """Return the lines and columns that have a number; None if there are none. ``marked``: marks of lines and
        columns.
        """
        if not figures:
            return None
        if "budget" in self._cols and self._cols[0] != "task":  # no other line has the budget of the full cache
            figures = _spread(figures, self._cols, ("budget", *ARMS), alone=True)
        used_lines = {place.line for place in figures}
        used_columns = {(place.column, place.average) for place in figures}
        lines = [line for line in self._lines if line in used_lines]
        columns = [column for column in self._columns if column in used_columns]
        labelled = self._labels(lines)
        keys = label_keys(self._rows)
        used = [i for i in range(len(keys)) if any(labels[i] for labels in labelled)]
        texts = [[labels[i] for i in used] for labels in labelled]
        for labels, line in zip(texts, lines, strict=True):
            if mark := (marked or {}).get(("line", line, False)):
                labels[-1] += f" {mark}"
        heads, groups = self._heads(columns)
        for i, (column, is_average) in enumerate(columns):
            if mark := (marked or {}).get(("column", column, is_average)):
                heads[i][groups] += f" {mark}"
        return Table(
            title=title,
            caption=(caption,),
            words=words,
            competition="of the methods",
            seconds=True,
            labels=tuple(LABEL_HEADS.get(keys[i], keys[i]) for i in used),
            heads=tuple(map(tuple, heads)),
            lines=tuple(
                TableRow(
                    _without_repeats(labels, before),
                    tuple(figures.get(Place(line, *column), Figure()) for column in columns),
                    reference=FULL in line,
                )
                for line, labels, before in zip(lines, texts, [None, *texts], strict=False)
            ),
            notes=tuple(notes),
            align="l" * len(columns) if self._is_text else "",
            groups=groups,
            rules=(0, *self._rules(lines, texts)),
        )

    def _labels(self, lines: Sequence[At]) -> list[list[str]]:
        """Return one label per line for each of `label_keys`; "+ CAOTE" below the line of its policy alone."""
        labelled = []
        for line in lines:
            values = dict(zip(self._rows, line, strict=True))
            hosts = {
                other["policy"]
                for other in (dict(zip(self._rows, each, strict=True)) for each in lines)
                if "score" in other and "policy" in other and is_host(other["policy"], other["score"])
                if all(other[key] == values[key] for key in self._rows if key not in ("policy", "score"))
            }
            full = "policy" in self._cols and values.get("budget") == EVERYTHING
            line = tuple("" if full and key == "budget" else value for key, value in values.items())
            labelled.append(line_labels(self._names, self._rows, line, hosts))
        return labelled

    def _heads(self, columns: Sequence[Column]) -> tuple[list[list[str]], int]:
        """Return the head of each column, and how many of its levels stand over several columns."""
        index = self._cols.index("task") if "task" in self._cols else None
        tasks = [column[index] for column, is_average in columns if not is_average] if index is not None else []
        kinds = {f"longbench/{task}": kind for kind, members in CATEGORIES.items() for task in members}
        is_grouped = len(self._cols) == 1 and len(tasks) > 2 and all(task in kinds for task in tasks)
        heads = []
        for column, is_average in columns:
            values = dict(zip(self._cols, column, strict=True))
            levels = [_column_head(self._names, key, value, values.get("policy")) for key, value in values.items()]
            levels = [kinds[column[0]], *levels] if is_grouped and not is_average else levels
            levels = [AVERAGE] if is_average else levels
            heads.append(levels + [""] * (LEVELS - len(levels)))
        return heads, max(len(self._cols) - 1, int(is_grouped), 0)

    def _rules(self, lines: Sequence[At], texts: Sequence[Sequence[str]]) -> tuple[int, ...]:
        """Below the full cache, and between budgets, models and methods that are listed with several scores."""
        rules = []
        policy_of = [dict(zip(self._rows, line, strict=True)).get("policy") for line in lines]
        several = {policy for policy, labels in zip(policy_of, texts, strict=True) if labels and labels[-1][:2] == "+ "}
        for i in range(1, len(lines)):
            policies = policy_of[i - 1 : i + 1]
            before = next((self._rows.index(key) for key in ("policy", "budget") if key in self._rows), 0)
            is_new = lines[i][:before] != lines[i - 1][:before] and FULL not in lines[i]
            if is_new or (policies[0] != policies[1] and several.union({FULL}) & {*policies}):
                rules.append(i)
        return tuple(rules)


def _without_repeats(labels: Sequence[str], before: Sequence[str] | None) -> tuple[str, ...]:
    """Return the labels of a line without those that the line above has too; the last one always stands."""
    same = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(labels[:-1], (before or ())[:-1], strict=False))))
    return (*("" for _ in range(same)), *labels[same:])


def _column_head(names: Mapping[str, str], key: str, value: str, policy: str | None) -> str:
    """Return the head of a column; below its policy a score is "+ CAOTE", and nothing if it is the policy's own."""
    if key == "score" and policy is not None:
        return "" if is_host(policy, value) else f"+ {printed_name(names, key, value)}"
    if key == "context_length" and value:
        return f"{value} tokens"
    return AVERAGE if key == "budget" and not value else printed_name(names, key, value)
