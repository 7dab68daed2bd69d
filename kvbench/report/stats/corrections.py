"""Corrections for many tests: Holm, Tarone and Holm, and one family of a pooled test and a test per cell.

A sign-flip test of m differences that are not zero has no p below 2^-m, so a cell in which three answers changed cannot
be refused at 0.01 and does not need its share of alpha: Tarone, "A modified Bonferroni method for discrete data",
Biometrics 46 (1990) 515-522. After each refusal the remaining tests are considered anew: Goeman and Solari, "The
sequential rejection principle of familywise error control", Annals of Statistics 38 (2010) 3782-3810.

`regressions` asks whether anything became worse. Half of alpha goes to a pooled test of all rates, which detects a
loss too small for any single cell, half to the cells by the correction of Tarone and Holm; a test that refuses passes
its half on to the other: Bretz, Maurer, Brannath and Posch, "A graphical approach to sequentially rejective multiple
test procedures", Statistics in Medicine 28 (2009) 586-604. A run in which nothing is worse fails with a probability of
at most alpha, whatever the cells have in common: both tests are exact, and a cluster of the pooled test is a question,
however many cells answered it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvbench.report.stats.paired import Paired
from kvbench.report.stats.paired_tests import sign_flip

ALPHA = 0.005


@dataclass(frozen=True)
class Regressions:
    """One-sided p and decision of every cell, and of all of them together (None if there is no pooled test).

    ``threshold pooled_threshold``: what p was compared with; for the cells, at the last step.
    """

    cells: tuple[float, ...]
    worse: tuple[bool, ...]
    threshold: float
    pooled: float | None
    pooled_worse: bool
    pooled_threshold: float


def regressions(cells: Sequence[Paired], pooled: Paired | None, alpha: float = ALPHA) -> Regressions:
    """Test each cell, and all of them pooled, for a loss from a (baseline) to b (current)."""
    sums = [paired.gain().sums()[0] for paired in cells]
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


def holm(p: Sequence[float]) -> list[float]:
    """Adjusted p values, in the order given; they are compared with alpha each. Needs no independence.

    Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6 (1979) 65-70.
    """
    order = np.argsort(p, kind="stable")
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(np.arange(len(p), 0, -1) * np.asarray(p, float)[order]))
    return adjusted.tolist()


def tarone_holm(p: Sequence[float], least: Sequence[float], alpha: float) -> tuple[tuple[bool, ...], float]:
    """Which nulls are refused, and the last threshold.

    ``p``: of every test. ``least``: the smallest p that each could give. With ``least`` all 0 it is Holm's procedure.
    """
    remaining = list(range(len(p)))
    refused = [False] * len(p)
    while remaining:
        limit = threshold([least[i] for i in remaining], alpha)
        smallest = min(remaining, key=lambda i: p[i])
        if p[smallest] > limit:
            return tuple(refused), limit
        refused[smallest] = True
        remaining.remove(smallest)
    return tuple(refused), alpha


def threshold(least: Sequence[float], alpha: float) -> float:
    """Tarone's alpha / K."""
    ordered = np.sort(np.asarray(least, dtype=float))
    for k in range(1, len(ordered) + 1):
        if np.searchsorted(ordered, alpha / k, side="right") <= k:
            return alpha / k
    return alpha / max(1, len(ordered))
