"""Has anything become worse? One pooled test and one test a cell, with one chance of a false alarm for all of them.

A cell is tested by the one-sided sign-flip test of its pairs, and all pairs of rates together by one more, which sees
a loss that is too thin for any single cell. Half of alpha goes to the pooled test, half to the cells by the correction
of Tarone and Holm; what one of them refuses passes its half on to the other: Bretz, Maurer, Brannath and Posch, "A
graphical approach to sequentially rejective multiple test procedures", Statistics in Medicine 28 (2009) 586-604.
Whatever the cells have in common, a run in which nothing is worse fails with a probability of at most alpha: both tests
are exact, and a cluster of the pooled test is a question, however many cells answered it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvbench.report.stats.paired import Paired
from kvbench.report.stats.permutation import sign_flip
from kvbench.report.stats.tarone import tarone_holm

ALPHA = 0.005


@dataclass(frozen=True)
class Regressions:
    """One-sided p and decision of every cell, and of all pairs together (None where that is no test of its own).

    ``threshold pooled_threshold``: what p was held against; of the cells, that of the last step.
    """

    cells: tuple[float, ...]
    worse: tuple[bool, ...]
    threshold: float
    pooled: float | None
    pooled_worse: bool
    pooled_threshold: float


def regressions(cells: Sequence[Paired], pooled: Paired | None, alpha: float = ALPHA) -> Regressions:
    """Test cells, and all of them together, for a loss from a (baseline) to b (current)."""
    sums = [pairs.gain().sums()[0] for pairs in cells]
    p = tuple(sign_flip(each, "less", alpha / 2 / len(sums)).p for each in sums)
    least = [2.0 ** -int((each != 0).sum()) for each in sums]
    if pooled is None:
        worse, threshold = tarone_holm(p, least, alpha)
        return Regressions(p, worse, threshold, None, False, alpha)
    together: np.ndarray = pooled.gain().sums()[0]
    p_pooled = sign_flip(together, "less", alpha / 2).p
    first = p_pooled <= alpha / 2
    worse, threshold = tarone_holm(p, least, alpha if first else alpha / 2)
    level = alpha if all(worse) else alpha / 2
    return Regressions(p, worse, threshold, p_pooled, p_pooled <= level, level)
