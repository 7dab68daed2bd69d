"""Holm's correction: one family of tests, and how sure one can be of all of them at once."""

from collections.abc import Sequence

import numpy as np


def holm(p: Sequence[float]) -> list[float]:
    """p values that may be compared with alpha each, so that with probability 1 - alpha no true null is refused.

    Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6 (1979) 65-70.
    Needs no independence. In the order given.
    """
    order = np.argsort(p, kind="stable")
    adjusted = np.empty(len(p))
    factors = np.arange(len(p), 0, -1)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(factors * np.asarray(p, dtype=float)[order]))
    return adjusted.tolist()
