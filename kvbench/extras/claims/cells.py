"""Answers of every cell of a family, with what stands beside it at the same budget: the claims' other table."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from kvbench.extras.claims.answers import Answers
from kvbench.extras.claims.file import Cell, Claims
from kvbench.records import Row
from kvbench.report.compare.paired_rows import pair
from kvbench.report.stats.intervals import interval
from kvbench.report.stats.paired import Paired


@dataclass(frozen=True)
class Against:
    """The difference to what stands beside a cell, in the unit of the values, and how many times its bytes are held."""

    difference: float
    low: float | None
    high: float | None
    times: float | None


@dataclass(frozen=True)
class CellLine:
    """One cell. name: of what stands beside others, else "". rows, planned: answers that there are, and are asked for.

    means: of each task whose prompts are all there. held: mean bytes of the KV pairs kept. against: by name.
    """

    cell: Cell
    name: str
    rows: int
    planned: int
    rate: bool
    means: tuple[float | None, ...]
    held: float | None
    against: dict[str, Against | None]


def cells_of(claims: Claims, family: str) -> list[tuple[str, Cell]]:
    """Return the cells of a family, each once: those beside others with their names, then the sides of its claims."""
    sides = [claims.cell(family, side) for each in claims.claims if each.family == family for side in (each.a, each.b)]
    named = [(name, cell) for side in sides for name, cell in claims.cells_beside(side).items()]
    unique: dict[str, tuple[str, Cell]] = {}
    for name, cell in (*named, *(("", side) for side in sides)):
        unique.setdefault(cell.key, (name, cell))
    return [*unique.values()]


def cell_lines(answers: Answers, family: str) -> list[CellLine]:
    """Return the answers of the cells of a family. Raises as `Answers.of`."""
    return [_line(answers, name, cell) for name, cell in cells_of(answers.claims, family)]


def _line(answers: Answers, name: str, cell: Cell) -> CellLine:
    family = answers.claims.families[cell.family]
    rows = [row for row in answers.rows(cell) if row.value is not None]
    values = [[row.value for row in rows if row.task == task and row.value is not None] for task in family.tasks]
    others = {} if name else answers.claims.cells_beside(cell)
    return CellLine(
        cell,
        name,
        len(rows),
        family.samples * len(family.tasks),
        Paired.of([(row, row) for row in rows]).rate,
        tuple(fmean(of_task) if len(of_task) == family.samples else None for of_task in values),
        _held(rows),
        {name: _against(answers, cell, other) for name, other in others.items()},
    )


def _held(rows: Sequence[Row]) -> float | None:
    sizes = [row.cache_bytes for row in rows if row.cache_bytes is not None]
    return fmean(sizes) if sizes else None


def _against(answers: Answers, cell: Cell, other: Cell) -> Against | None:
    """Return the difference over all prompts of all tasks; None while some are missing."""
    side, beside, family = answers.of(cell), answers.of(other), answers.claims.families[cell.family]
    if isinstance(side, str) or isinstance(beside, str):
        return None
    rows = [both for match in pair(beside, side).matches for both in match.rows]
    if len(rows) < family.samples * len(family.tasks):
        return None
    paired = Paired.of(rows)
    limits = interval(paired)
    held = [_held([both[place] for both in rows]) for place in (1, 0)]
    times = held[0] / held[1] if held[0] is not None and held[1] else None
    return Against(float(paired.difference.mean()), limits.low, limits.high, times)
