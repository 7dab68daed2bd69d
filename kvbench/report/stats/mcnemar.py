"""McNemar's exact test of paired 0/1 answers, and Tango's interval for their difference.

McNemar, "Note on the sampling error of the difference between correlated proportions or percentages", Psychometrika 12
(1947) 153-157: only the pairs count in which one side is right and the other wrong; if both sides are equally good,
each of them falls to either side with probability 1/2.

Tango, "Equivalence test and confidence interval for the difference in proportions for the paired-sample design",
Statistics in Medicine 17 (1998) 891-908: all differences that a score test at 5 % does not refuse (equations 8 to 12).
"""

import math

from scipy.special import bdtr

from kvbench.report.stats.interval import NORMAL_QUANTILE


def mcnemar(only_a: int, only_b: int) -> float:
    """Two-sided exact p from the number of pairs in which only A, and only B, is right."""
    return min(1.0, 2.0 * float(bdtr(min(only_a, only_b), only_a + only_b, 0.5)))


def tango(only_a: int, only_b: int, n: int) -> tuple[float, float]:
    """Tango's 95 % interval for P(B right) - P(A right), from n pairs."""
    assert n > 0 and min(only_a, only_b) >= 0 and only_a + only_b <= n
    high = _limit(only_b, only_a, n)
    return -_limit(only_a, only_b, n), high


def _limit(gained: int, lost: int, n: int) -> float:
    """The largest difference whose score statistic is no less than -NORMAL_QUANTILE, by bisection: it falls with it."""
    inside, outside = (gained - lost) / n, 1.0
    for _ in range(60):
        middle = (inside + outside) / 2
        if _score(gained, lost, n, middle) >= -NORMAL_QUANTILE:
            inside = middle
        else:
            outside = middle
    return (inside + outside) / 2


def _score(gained: int, lost: int, n: int, difference: float) -> float:
    """Equation 9, with the restricted maximum likelihood estimate of P(only A right) of equations 11 and 12."""
    linear = -gained - lost + (2 * n - gained + lost) * difference
    constant = -lost * difference * (1 - difference)
    nuisance = (math.sqrt(max(linear**2 - 8 * n * constant, 0.0)) - linear) / (4 * n)
    variance = n * (2 * nuisance + difference * (1 - difference))
    distance = gained - lost - n * difference
    return distance / math.sqrt(variance) if variance > 0 else math.copysign(math.inf, distance) if distance else 0.0
