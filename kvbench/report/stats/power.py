"""How often a one-sided sign-flip test finds a loss, from the number of independent prompts.

The answers of several cells to one prompt are not independent: many cells fail on the same hard prompt. So prompts are
counted, not answers: `effective_prompts` is how many prompts with one answer each would carry as much (the design
effect of Kish, Survey Sampling, 1965, section 5.4). ``CORRELATION`` is the correlation of answers to one prompt:
measured on results/reference it is 0.10 to 0.17 over all cells of a task, and 0.19 to 0.41 over the cells of one method
(benchmarks/statistics/shared_noise.py; benchmarks/results/statistics.md has the table).

A lost prompt is lost whole, 1 to 0: of all ways to lose as much on average this one changes the fewest prompts, and is
the hardest to find.
"""

from functools import lru_cache

import numpy as np
from scipy.special import bdtr, bdtrc

CORRELATION = 0.4
POWER = 0.8
_FAR = 1e-6
"""The probability of more prompts won by chance than are considered."""


def effective_prompts(sizes: np.ndarray, correlation: float) -> float:
    """Independent prompts with one answer each that are worth as much as prompts with ``sizes[prompts]`` answers."""
    answers = float(sizes.sum())
    return answers / (1 + (float((sizes**2).sum()) / answers - 1) * correlation)


def power(prompts: int, level: float, noise: float, loss: float) -> float:
    """Return how often a loss is found, 0..1.

    ``level``: of the test. ``noise``: the share of prompts that chance turns from right to wrong, and as many from
    wrong to right. ``loss``: the share of prompts that is lost beside them.
    """
    chances, most_missed = _critical(prompts, level, noise)
    return float(np.sum(chances * bdtrc(most_missed, prompts, min(1.0, noise + loss))))


@lru_cache(maxsize=4096)
def smallest_loss(prompts: int, level: float, noise: float) -> float | None:
    """Return the smallest loss that is found with probability ``POWER``, as a share of prompts; None where none is."""
    if power(prompts, level, noise, 1.0) < POWER:
        return None
    low, high = 0.0, 1.0
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (low, middle) if power(prompts, level, noise, middle) >= POWER else (middle, high)
    return high


@lru_cache(maxsize=4096)
def _critical(prompts: int, level: float, noise: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the chances to win 0, 1, 2 ... prompts, and the most lost ones with which p is above ``level``."""
    at_most = bdtr(np.arange(prompts + 1.0), prompts, noise)
    at_most = at_most[: int(np.searchsorted(at_most, 1 - _FAR)) + 1]
    least_lost, lost = [], 0
    for won in range(len(at_most)):
        while bdtr(float(won), lost + won, 0.5) > level:
            lost += 1
        least_lost.append(lost)
    return np.diff(at_most, prepend=0.0), np.minimum(np.array(least_lost) - 1.0, prompts)
