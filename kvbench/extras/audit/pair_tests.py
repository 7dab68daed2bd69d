"""How sure the difference of two printed means is, at each level; the smallest gain, and the prompts that settle it.

McNemar, "Note on the sampling error of the difference between correlated proportions", Psychometrika 12 (1947) 153-157:
of m prompts that one side alone answers right, half are won by chance; exact by the binomial distribution where the
means tell how many were right. Else z = d / sqrt(D / n). Sample size: Connor, "Sample size for testing differences in
proportions for the paired-sample design", Biometrics 43 (1987) 207-211: n d^2 = (z_a sqrt(D) + z_b sqrt(D - d^2))^2.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from scipy.optimize import root_scalar
from scipy.special import betaincinv, ndtr, ndtri

from kvbench.extras.audit.pairs import Level, Pair
from kvbench.report.stats.paired_tests import mcnemar
from kvbench.report.stats.power import POWER

ALPHA = 0.05
Z_TEST, Z_POWER = float(ndtri(1 - ALPHA / 2)), float(ndtri(POWER))
"""Quantiles of the test and of its power."""
FEWEST = 6
"""Prompts that must change, all the same way, for a p of at most ``ALPHA``: 2 / 2^6."""


def p_value(pair: Pair, level: Level) -> float:
    """Return the two-sided p of a paired test, if D has the value of the level.

    At `any` the rounding of printed numbers counts against the difference: what always holds holds for every number
    that is printed so.
    """
    if pair.right is not None:
        return binomial_p(pair.net, pair.discordant(level))
    rounding = 2 * pair.half if level == "any" else 0.0
    distance, square = max(0.0, abs(pair.difference) - rounding), pair.mean_square(level) + rounding
    return normal_p(distance, math.sqrt(square / (pair.units * pair.tasks)), pair.units * pair.tasks)


def binomial_p(net: int, discordant: int) -> float:
    """McNemar's exact p of `discordant` prompts, won less lost ones being `net`."""
    lost = (discordant - abs(net)) // 2
    return mcnemar(lost, discordant - lost)


def normal_p(distance: float, error: float, prompts: float = math.inf) -> float:
    """Return the two-sided normal p; none below 2 / 2^prompts, the least of all sign-flip tests of so many prompts."""
    if distance == 0.0:
        return 1.0
    p = 2 * float(ndtr(-distance / error)) if error > 0 else 0.0
    return min(1.0, max(p, 2.0 ** (1 - min(prompts, 1000))))


def needed(pair: Pair, level: Level) -> int | None:
    """Return prompts (of each task) that show the printed difference with a power of 80 %; None for no difference."""
    square, gain = pair.mean_square(level), pair.difference**2
    if gain == 0.0:
        return None
    n = _squared_sum(square, gain) / gain / pair.tasks
    return max(math.ceil(n - 1e-9), FEWEST if pair.is_right_or_wrong else 2)


def _squared_sum(square: float, gain: float) -> float:
    """(z_a sqrt(D) + z_b sqrt(D - d^2))^2."""
    return (Z_TEST * math.sqrt(square) + Z_POWER * math.sqrt(max(square - gain, 0.0))) ** 2


@lru_cache(maxsize=4096)
def smallest_gain(pair: Pair, level: Level) -> float | None:
    """Return the smallest gain over a that n prompts show with a power of 80 %; None if even the largest is not shown.

    Right and wrong answers: at least the share of prompts of which `FEWEST` change with that power, exactly; at `best`
    that share.
    """
    n, room = pair.units * pair.tasks, 1 - pair.a if pair.bounded else math.inf
    least = 0.0
    if pair.is_right_or_wrong:
        if n < FEWEST:
            return None
        least = float(betaincinv(FEWEST, n - FEWEST + 1, POWER))  # P(at least FEWEST of n) = POWER
        if least > room or level == "best":
            return least if least <= room else None

    def excess(gain: float) -> float:
        b = min(pair.a + gain, 1.0) if pair.bounded else pair.a + gain
        grown = replace(pair, b=b, tasks=2)  # two tasks: their means tell no whole numbers
        return n * gain**2 - _squared_sum(grown.mean_square(level), gain**2)

    most = room if pair.bounded else 100 * sum(pair.spread or (1.0,))
    if most <= 0 or excess(most) < 0:
        return None
    return max(least, _root(excess, 1e-9, most))


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    """Return where a growing function is zero; `high` if it is nowhere."""
    if not function(low) < 0 < function(high):
        return high
    return float(root_scalar(function, bracket=(low, high), method="brentq").root)


def least_correlation(pair: Pair) -> float | None:
    """rho*: the least correlation of both scores at which the difference has p <= 0.05, by the normal test.

    Clipped to -1 (it always has) and None if no correlation suffices.
    """
    if pair.difference == 0.0:
        return None
    square = pair.units * pair.tasks * (pair.difference / Z_TEST) ** 2
    if pair.spread is not None:
        v, w = (sd**2 for sd in pair.spread)
    else:
        v, w = (pair.factor * mean * (1 - mean) for mean in (pair.a, pair.b))
    variance = square - pair.difference**2
    if v * w == 0.0:
        return -1.0 if variance >= v + w else None
    rho = (v + w - variance) / (2 * math.sqrt(v * w))
    return None if rho > 1.0 else max(rho, -1.0)
