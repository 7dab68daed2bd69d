"""Holm's correction where some tests cannot refuse anything: they are not counted.

A sign-flip test of m differences that are not zero has no p below 2^-m. A cell in which three answers changed can
therefore never be called worse at 0.01, and need not take its share of alpha from the others. Tarone, "A modified
Bonferroni method for discrete data", Biometrics 46 (1990) 515-522: the divisor is the smallest K such that no more than
K tests could refuse at alpha / K. After each refusal the others are looked at anew, which is a sequential rejection
procedure: the threshold only grows, and by Bonferroni holds alpha for whichever nulls are true. Goeman and Solari, "The
sequential rejection principle of familywise error control", Annals of Statistics 38 (2010) 3782-3810.
"""

from collections.abc import Sequence

import numpy as np


def tarone_holm(p: Sequence[float], least: Sequence[float], alpha: float) -> tuple[tuple[bool, ...], float]:
    """Which nulls are refused, and the last threshold.

    ``p``: of every test. ``least``: the smallest p it could have given. With ``least`` all 0 it is Holm's procedure.
    """
    remaining = list(range(len(p)))
    refused = [False] * len(p)
    while remaining:
        limit = threshold([least[i] for i in remaining], alpha)
        found = min(remaining, key=lambda i: p[i])
        if p[found] > limit:
            return tuple(refused), limit
        refused[found] = True
        remaining.remove(found)
    return tuple(refused), alpha


def threshold(least: Sequence[float], alpha: float) -> float:
    """alpha / K of Tarone."""
    ordered = np.sort(np.asarray(least, dtype=float))
    for k in range(1, len(ordered) + 1):
        if np.searchsorted(ordered, alpha / k, side="right") <= k:
            return alpha / k
    return alpha / max(1, len(ordered))
