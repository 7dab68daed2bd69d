"""Which cells of a table differ from a baseline cell by more than chance: the marks beside its means."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvbench.records import Row
from kvbench.report.compare.compare import ALPHA
from kvbench.report.stats.holm import holm
from kvbench.report.stats.paired import Paired, paired
from kvbench.report.stats.pairing import shown
from kvbench.report.stats.permutation import sign_flip
from kvbench.support.errors import UserError

_SAME = ("model", "task", "context_length", "seed")


@dataclass(frozen=True)
class Mark:
    """One cell against its baseline: mean difference over n common samples, and whether it survives Holm.

    ``better``: whether the difference is to the good; None where there is none.
    """

    baseline: str
    n: int
    difference: float
    p_holm: float
    survives: bool
    better: bool | None


def survivors(rows: Sequence[Row], is_baseline: Callable[[Row], bool], alpha: float = ALPHA) -> dict[str, Mark]:
    """Marks of all cells, by cell, of which a baseline answered the same questions.

    The baseline of a cell is the one among the cells ``is_baseline`` names that has its model, task, context length and
    seed; where several have, the one with its budget. The family of the correction is all marks of one call.

    Raises ValueError where a cell has two baselines.
    """
    cells: dict[str, list[Row]] = {}
    for row in rows:
        cells.setdefault(row.cell, []).append(row)
    firsts = {cell: found[0] for cell, found in cells.items()}
    bases: dict[tuple, list[str]] = {}
    for cell, first in firsts.items():
        if is_baseline(first):
            bases.setdefault(_question(first), []).append(cell)
    tested: dict[str, tuple[str, Paired]] = {}
    for cell, first in firsts.items():
        base = None if is_baseline(first) else _base(first, bases.get(_question(first), []), firsts)
        if base is not None:
            known = {row.sample: row for row in cells[base] if row.value is not None and row.metric == first.metric}
            common = sorted((row for row in cells[cell] if row.value is not None), key=lambda row: row.sample)
            pairs = [(known[row.sample], row) for row in common if row.sample in known]
            if pairs:
                tested[cell] = (base, paired(pairs))
    finest = alpha / max(1, len(tested))
    corrected = holm([sign_flip(pairs.sums()[0], finest=finest).p for _, pairs in tested.values()])
    marks = {}
    for (cell, (base, pairs)), p_holm in zip(tested.items(), corrected, strict=True):
        gain = float(pairs.gain().difference.mean())
        better = gain > 0 if gain else None
        marks[cell] = Mark(base, pairs.n, float(pairs.difference.mean()), p_holm, p_holm <= alpha, better)
    return marks


def _question(row: Row) -> tuple:
    return tuple(getattr(row, name) for name in _SAME)


def _base(row: Row, candidates: Sequence[str], firsts: dict[str, Row]) -> str | None:
    same = [cell for cell in candidates if firsts[cell].budget == row.budget] if len(candidates) > 1 else candidates
    if len(same) > 1:
        told = [_told(firsts[cell]) for cell in sorted(same)]
        raise UserError(
            f"cell {row.cell} ({row.task} {_told(row)}) has "
            f"{len(same)} baselines: {' and '.join(told)}; name one of them, like "
            f"policy={shown(firsts[same[0]].policy)},score={shown(firsts[same[0]].score)}"
        )
    return same[0] if same else None


def _told(row: Row) -> str:
    return " ".join(map(shown, (row.policy, row.score, row.budget)))
