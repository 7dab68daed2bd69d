"""How far a score may be from what a case expects."""

from typing import Any

import numpy as np


def worst_error(got: np.ndarray, expected: np.ndarray, spec: dict[str, Any], times: int = 1) -> float:
    """The largest |got - expected| over `times` x tolerance x max(|expected|, floor x the largest of the head).

    The last axis runs along a head. Where NaN is expected nothing is looked at; NaN elsewhere is infinitely far.
    """
    ranked = ~np.isnan(expected)
    size = np.abs(expected)
    floor = spec["score_floor"] * np.max(size, axis=-1, keepdims=True, initial=0, where=ranked)
    allowed = times * spec["score_tolerance"] * np.fmax(size, floor)
    with np.errstate(invalid="ignore", divide="ignore"):
        excess = np.where(got == expected, 0, np.abs(got - expected) / allowed)
    excess[ranked & np.isnan(excess)] = np.inf
    return float(np.max(excess, initial=0, where=ranked))
