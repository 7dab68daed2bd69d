"""A paper's table three ways, each in the paper's layout: what we measured, what it printed, and the difference.

A difference is there only where model and protocol are the paper's and every sample has a value.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from kvbench.papers.item import ARMS, Item
from kvbench.papers.measured import Measured, Placed, averages, places
from kvbench.papers.published import AVERAGE, WORDS, Published
from kvbench.report.tables.sheet import Figure, Sheet, SheetLine
from kvbench.report.tables.summary import budget_key

At = tuple[str, ...]
T = TypeVar("T")
LEVELS = 3
"""Lines that the head of a sheet has."""
FULL = "full"
MARKS = "abcdefghijklmnopqrstuvwxyz"
PERCENT = "percent"


@dataclass(frozen=True)
class Page:
    """One item as rendered. `numbers` are its places, for machines: (row and column values, ours, published)."""

    item: Item
    head: tuple[str, ...]
    ours: Sheet | None
    published: Sheet | None
    difference: Sheet | None
    notes: tuple[str, ...]
    numbers: tuple[tuple[At, Measured | None, Published | None, float | None], ...]
    smoke: bool


def page(
    item: Item,
    cells: Sequence[Placed],
    printed: Sequence[Published],
    said: Sequence[str],
    smoke: bool,
    given: Mapping[At, Measured] | None = None,
) -> Page:
    """Set an item's cells beside its published numbers. `said`: what else the page must say. `given`: numbers of ours
    that no cell measured.
    """
    last = ("",) * len(item.layout.cols)
    ours = {(at, False): one for at, one in {**places(item, cells, smoke), **(given or {})}.items()}
    ours |= {((*line, *last), True): one for line, one in averages(item, cells, smoke).items()}
    theirs = {(_place(item, one), one.average): one for one in printed}
    ours, theirs = _spread(item, ours), _spread(item, theirs)
    order = list(dict.fromkeys([*theirs, *ours]))
    differences = {place: _difference(ours.get(place), theirs.get(place), item) for place in order}
    unit = next((one.unit for one in printed), "")
    models = list(dict.fromkeys(cell.model for cell in cells))
    head = [item.title, *_about(models, list(ours.values()), smoke)] if cells else [item.title]
    flags = {flag: MARKS[i % 26] for i, flag in enumerate(dict.fromkeys(one.flag for one in printed if one.flag))}
    blocks = _Blocks(item, order)
    return Page(
        item=item,
        head=tuple(head),
        ours=blocks.sheet(
            "ours",
            _caption(item, bool(given), unit),
            {at: _measured(one, unit, _common(ours)) for at, one in ours.items()},
        )
        if ours
        else None,
        published=blocks.sheet(
            "published",
            _caption(item, bool(given), unit) if item.layout.wins else "as printed" + _unit(unit),
            {at: Figure(one.value, note=flags.get(one.flag, "")) for at, one in theirs.items()},
            [f"{mark}: {flag.replace('_', ' ')}" for flag, mark in flags.items()],
        )
        if theirs
        else None,
        difference=blocks.sheet(
            "difference",
            "ours - published" + _unit(unit),
            {at: Figure(_signed(value, unit)) for at, value in differences.items() if value is not None},
        )
        if any(value is not None for value in differences.values())
        else None,
        notes=(*said, *_notes(item, cells, ours, theirs, differences)),
        numbers=tuple(
            (
                at if not mean else (*at[: len(item.layout.rows)], *_average(item)),
                ours.get((at, mean)),
                theirs.get((at, mean)),
                differences[at, mean],
            )
            for at, mean in order
        ),
        smoke=smoke,
    )


def _spread(item: Item, found: Mapping[tuple[At, bool], T]) -> dict[tuple[At, bool], T]:
    """The full cache in every column that differs from its own by an arm alone, which it does not have."""
    rows = len(item.layout.rows)
    columns = list(dict.fromkeys(at[rows:] for at, mean in found if not mean and FULL not in at))
    spread: dict[tuple[At, bool], T] = {}
    for (at, mean), one in found.items():
        own = at[rows:]
        like = [
            column
            for column in columns
            if all(key in ARMS or a == b for key, a, b in zip(item.layout.cols, own, column, strict=True))
        ]
        if FULL in at and not mean and like:
            spread |= {((*at[:rows], *column), mean): one for column in like}
        else:
            spread[at, mean] = one
    return spread


def _signed(value: float, unit: str) -> str:
    return f"{'+' if value >= 0 else ''}{_written(value, unit)}"


def _average(item: Item) -> At:
    return (AVERAGE, *("" for _ in item.layout.cols[1:]))


def _place(item: Item, one: Published) -> At:
    return (*one.at[: len(item.layout.rows)], *("" for _ in item.layout.cols)) if one.average else one.at


def _about(models: Sequence[str], ours: Sequence[Measured], smoke: bool) -> list[str]:
    counts = sorted({one.n for one in ours if one.mean is not None})
    n = f"n = {counts[0]}{f' to {counts[-1]}' if len(counts) > 1 else ''} a number" if counts else "no number yet"
    line = f"Ours: model {', '.join(models)}; {n}"
    return [
        f"SMOKE: {line[0].lower()}{line[1:]}. It shows that the table can be made, not what the paper's model does."
        if smoke
        else f"{line}."
    ]


def _caption(item: Item, given: bool, unit: str) -> str:
    if item.layout.wins:
        return "tasks on which one of a pair has the higher mean"
    return ("from formulas" if given else "mean [95 % interval]") + _unit(unit)


def _unit(unit: str) -> str:
    return "" if unit in ("", *WORDS) else f", {unit}"


def _common(ours: Mapping[tuple[At, bool], Measured]) -> int:
    counts = [one.n for (_, mean), one in ours.items() if not mean]
    return max(set(counts), key=counts.count) if counts else 0


def _scaled(one: Measured, value: float, unit: str) -> float:
    return 100 * value if one.rate and unit in (PERCENT, "") else value


def _measured(one: Measured, unit: str, common: int) -> Figure:
    """Two digits as papers print them; n where it is not that of the others, and what is missing."""
    note = "" if one.n == common else f"n={one.n}"
    if one.failed:
        note += f" {one.failed} failed"
    if one.mean is None:
        return Figure(note=f"{one.missing} of {one.cells} cells missing" if one.cells > 1 else note or "missing")
    low, high = (
        "" if end is None or not math.isfinite(end) else _written(_scaled(one, end, unit), unit, one.rate)
        for end in (one.low, one.high)
    )
    return Figure(_written(_scaled(one, one.mean, unit), unit), low, high, note.strip())


def _written(value: float, unit: str, whole: bool = False) -> str:
    """Percentages with two decimals or none, all else with four digits."""
    return f"{value:.{0 if whole else 2}f}" if unit in (PERCENT, "") else f"{value:.4g}"


def _difference(ours: Measured | None, theirs: Published | None, item: Item) -> float | None:
    """None unless both are there, for the paper's model and protocol, and no sample is missing."""
    if ours is None or theirs is None or ours.mean is None or ours.differs or ours.failed:
        return None
    try:
        return _scaled(ours, ours.mean, theirs.unit) - float(theirs.value)
    except ValueError:
        return None


def _notes(
    item: Item,
    cells: Sequence[Placed],
    ours: Mapping[tuple[At, bool], Measured],
    theirs: Mapping[tuple[At, bool], Published],
    differences: Mapping[tuple[At, bool], float | None],
) -> list[str]:
    notes = list(item.notes)
    differs = list(dict.fromkeys(text for cell in cells for text in cell.differs))
    if differs:
        notes.append(f"Differs from the paper's protocol: {'; '.join(differs)}.")
    if ours and theirs and not any(value is not None for value in differences.values()):
        why = "model or protocol differ" if differs else "no place of the layout has both numbers"
        notes.append(f"No difference is shown: {why}.")
    protocols = list(dict.fromkeys(one.protocol for one in theirs.values() if one.protocol and one.unit not in WORDS))
    if protocols and "protocol" not in item.keys:
        notes.append("The paper's protocol: " + " | ".join(protocols[:4]) + ("; ..." if len(protocols) > 4 else "."))
    if item.sources:
        notes.append("Settings from: " + "; ".join(f"{key}: {source}" for key, source in item.sources.items()) + ".")
    return notes


def _head_of(key: str, value: str) -> str:
    """What stands above a column."""
    if key == "context_length" and value:
        return f"{value} tokens"
    if key == "budget" and not value:
        return AVERAGE
    return value.rpartition("/")[2] if key == "task" else value


class _Blocks:
    """Sheets that share the order of lines and columns, so that the three can be read side by side."""

    def __init__(self, item: Item, order: Sequence[tuple[At, bool]]) -> None:
        self._rows, self._cols = item.layout.rows, item.layout.cols
        rows = list(dict.fromkeys(at[: len(self._rows)] for at, _ in order))
        self._lines = [line for line in rows if FULL in line] + [line for line in rows if FULL not in line]
        if "budget" in self._rows:  # ours may have others than the paper
            self._lines.sort(key=lambda line: (FULL not in line, budget_key(line[self._rows.index("budget")])))
        if "model" in self._rows:  # each model with its full cache
            models = list(dict.fromkeys(line[self._rows.index("model")] for line in rows))
            self._lines.sort(key=lambda line: models.index(line[self._rows.index("model")]))
        self._columns = list(dict.fromkeys((at[len(self._rows) :], mean) for at, mean in order))
        self._columns.sort(key=lambda column: self._rank(column[0], column[1]))

    def _rank(self, column: At, mean: bool) -> tuple[object, ...]:
        """Averages last; numbers by size; names as the paper has them (a stable sort leaves them)."""
        ranks = []
        for key, value in zip(self._cols, column, strict=True):
            if key == "context_length":
                ranks.append((float(value or 0),))
            else:
                ranks.append(budget_key(value) if key == "budget" and value else (False, 0.0, ""))
        return (mean, *ranks)

    def sheet(
        self, title: str, caption: str, figures: Mapping[tuple[At, bool], Figure], notes: Sequence[str] = ()
    ) -> Sheet:
        """Only lines and columns that have a number."""
        lines = [line for line in self._lines if any(at[: len(self._rows)] == line for at, _ in figures)]
        columns = [one for one in self._columns if any((at[len(self._rows) :], mean) == one for at, mean in figures)]
        labels = [i for i, _ in enumerate(self._rows) if any(line[i] for line in lines)]
        return Sheet(
            title=title,
            caption=caption,
            labels=tuple(self._rows[i] for i in labels),
            heads=tuple(self._head(column, mean) for column, mean in columns),
            lines=tuple(
                SheetLine(
                    tuple(line[i] for i in labels),
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
        said = [AVERAGE] if mean else [_head_of(key, value) for key, value in zip(self._cols, column, strict=True)]
        return (*said, *("" for _ in range(LEVELS - len(said))))
