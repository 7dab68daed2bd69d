"""How long the rest of a group will take, by the rows that are there: what a result will still cost."""

from collections.abc import Iterable, Sequence
from statistics import fmean

from kvbench.records import Row
from kvbench.run.plan import PrefillGroup
from kvbench.tasks.efficiency import Efficiency


def expected_seconds(group: PrefillGroup, rows: Iterable[Row]) -> float | None:
    """Seconds of reading, cutting and decoding; None where nothing is to do or a cell to run has no row yet.

    A prompt takes what prompts of the group took on average, a row what rows of its cell did. Loading a model and
    warming up are not counted.
    """
    own = {cell.id for cell in group.cells}
    found: dict[str, list[Row]] = {}
    for row in rows:
        if row.cell in own and row.error is None and row.decode_seconds is not None:
            found.setdefault(row.cell, []).append(row)
    todo: dict[str, int] = {}
    for unit in group.units:
        for cells in unit.missing.values():
            for cell in cells:
                todo[cell.id] = todo.get(cell.id, 0) + 1
    if not todo or any(cell not in found for cell in todo):
        return None
    timed = isinstance(group.task, Efficiency)  # each row reads its own prompts
    batch = group.task.batch if isinstance(group.task, Efficiency) else 1
    reading = _mean([row.prefill_seconds for some in found.values() for row in some])
    own_seconds = sum(many * _mean([_seconds(row) for row in found[cell]]) for cell, many in todo.items())
    prompts = sum(todo.values()) if timed else len(group.units)
    return batch * (prompts * reading + own_seconds)


def _seconds(row: Row) -> float:
    return (row.evict_seconds or 0.0) + (row.decode_seconds or 0.0)


def _mean(numbers: Sequence[float | None]) -> float:
    known = [number for number in numbers if number is not None]
    return fmean(known) if known else 0.0
