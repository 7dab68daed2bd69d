"""How far a mean of n samples can be trusted: 95 % intervals.

0/1 data (an answer is right or wrong): the score interval of Wilson, "Probable inference, the law of succession, and
statistical inference", JASA 22 (1927) 209-212; equation (4) of Brown, Cai and DasGupta, "Interval estimation for a
binomial proportion", Statistical Science 16 (2001) 101-133, who recommend it for small n. It never leaves 0..1 and does
not collapse at 0 or n hits, where the textbook interval does.

Anything else: Student, "The probable error of a mean", Biometrika 6 (1908) 1-25: mean +- t(n - 1) s / sqrt(n), cut to
0..1 for rates. Equal values have no spread to measure and give an interval of width zero.

Both speak about the mean over all prompts of the task, of which the n are a sample. Two cells of a table read the same
prompts, so their difference is known better than two overlapping intervals suggest.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

from scipy.special import stdtrit

NORMAL_QUANTILE = 1.959963984540054  # Phi(x) = 0.975


def mean_interval(values: Sequence[float], rate: bool) -> tuple[float, float | None, float | None]:
    """(mean, low, high) of one or more values; no interval for one value. ``rate``: the values live in 0..1."""
    assert len(values) > 0
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return mean, None, None
    if rate and all(value in (0.0, 1.0) for value in values):
        return mean, *wilson(sum(value == 1.0 for value in values), len(values))
    low, high = student(values)
    return (mean, max(low, 0.0), min(high, 1.0)) if rate else (mean, low, high)


def wilson(hits: int, n: int) -> tuple[float, float]:
    """Wilson's 95 % interval for the probability behind ``hits`` of ``n``."""
    z2 = NORMAL_QUANTILE**2
    centre = (hits + z2 / 2) / (n + z2)
    half = NORMAL_QUANTILE / (n + z2) * math.sqrt(hits * (n - hits) / n + z2 / 4)
    low = 0.0 if hits == 0 else centre - half  # exact at the ends, where rounding would leave 1e-17
    high = 1.0 if hits == n else centre + half
    return low, high


def student(values: Sequence[float]) -> tuple[float, float]:
    """Student's 95 % interval for the mean behind two or more values."""
    n = len(values)
    mean = math.fsum(values) / n
    variance = math.fsum((value - mean) ** 2 for value in values) / (n - 1)
    half = student_quantile(n - 1) * math.sqrt(variance / n)
    return mean - half, mean + half


@lru_cache(maxsize=1024)
def student_quantile(degrees: int) -> float:
    """t with P(|T| <= t) = 0.95 for an integer number of degrees of freedom."""
    return float(stdtrit(degrees, 0.975))
