"""Has anything become worse? One pooled test and one test a cell, with one chance of a false alarm for all of them.

A cell is tested by the one-sided sign-flip test of its pairs, and all pairs of rates together by one more, which sees
a loss that is too thin for any single cell. Half of alpha goes to the pooled test, half to the cells by Holm's
correction; what one of them refuses passes its half on to the other: Bretz, Maurer, Brannath and Posch, "A graphical
approach to sequentially rejective multiple test procedures", Statistics in Medicine 28 (2009) 586-604. Whatever the
cells have in common, a run in which nothing is worse fails with a probability of at most alpha: both tests are exact,
and a cluster of the pooled test is a question, however many cells answered it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kvbench.report.holm import holm
from kvbench.report.paired import Paired
from kvbench.report.permutation import sign_flip

ALPHA = 0.01


@dataclass(frozen=True)
class Regressions:
    """One-sided p and decision of every cell, and of all pairs together (None where that is no test of its own)."""

    cells: tuple[float, ...]
    worse: tuple[bool, ...]
    pooled: float | None
    pooled_worse: bool
    level: float  # that the corrected p of cells was held against

    @property
    def corrected(self) -> list[float]:
        """Holm's p of the cells, to be held against ``level``."""
        return holm(self.cells)


def regressions(cells: Sequence[Paired], pooled: Paired | None, alpha: float = ALPHA) -> Regressions:
    """Test cells, and all of them together, for a loss from a (baseline) to b (current)."""
    finest = alpha / 2 / max(1, len(cells))
    p = tuple(_loss(pairs, finest) for pairs in cells)
    if pooled is None:
        return Regressions(p, tuple(each <= alpha for each in holm(p)), None, False, alpha)
    p_pooled = _loss(pooled, alpha / 2)
    pooled_worse = p_pooled <= alpha / 2
    level = alpha if pooled_worse else alpha / 2
    worse = tuple(each <= level for each in holm(p))
    if all(worse):
        pooled_worse = p_pooled <= alpha
    return Regressions(p, worse, p_pooled, pooled_worse, level)


def _loss(pairs: Paired, finest: float) -> float:
    return sign_flip(pairs.gain().sums()[0], "less", finest).p
