"""Evidence about a mean loss that may be looked at after every prompt, without a plan of how many there will be.

A test is a bet: who doubts that a mean is at most a limit starts with one unit, and before each prompt stakes a share
of it on the next loss being above the limit. If the doubt is wrong, the wealth is expected not to grow, and it ever
reaches 1 / alpha with a probability of at most alpha (Ville, Etude critique de la notion de collectif, 1939). So 1 /
wealth is a p value at every moment, however often it was looked at and whatever made the looking end. For means of
bounded values: Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting", Journal of the Royal
Statistical Society B 86 (2024) 1-27.

Nobody knows the best share beforehand, so the unit is divided over ``SHARES``, as in the universal portfolio of Cover
and Ordentlich, "Universal portfolios with side information", IEEE Transactions on Information Theory 42 (1996) 348-363;
its use for confidence sequences: Orabona and Jun, IEEE Transactions on Information Theory 70 (2024) 436-455. The wealth
then depends on which losses there were, not on their order.

Valid for losses in -1..1 whose expectation, given the prompts before, is the mean in question: prompts in random order,
one loss for each context. Nothing is assumed of their distribution.
"""

import math

import numpy as np

NODES = 64
SHARES = np.sin(np.pi * (2 * np.arange(1, NODES + 1) - 1) / (4 * NODES)) ** 2
"""Stakes, as shares of the wealth: as many at 0 and 1 as Beta(1/2, 1/2) has, the weights of the universal portfolio."""
FAR = 10**7
"""Prompts beyond which nobody waits for a decision."""
_EDGE = 1e-9


def p_above(losses: np.ndarray, limit: float) -> float:
    """p of "the mean loss is at most `limit`": small where losses are above it. losses, limit: in -1..1."""
    return math.exp(-max(0.0, _log_wealth(_growth(losses, limit))))


def p_below(losses: np.ndarray, limit: float) -> float:
    """p of "the mean loss is at least `limit`": small where losses are below it."""
    return p_above(-losses, -limit)


def confidence(losses: np.ndarray, alpha: float = 0.05) -> tuple[float, float]:
    """Limits that contain the mean loss at all moments with a probability of at least 1 - alpha."""
    if not len(losses):
        return -1.0, 1.0
    return _lowest(losses, alpha / 2), -_lowest(-losses, alpha / 2)


def more_prompts(losses: np.ndarray, limit: float, above: float, below: float) -> int | None:
    """Prompts until `p_above` is at most `above` or `p_below` at most `below`, if their losses have the frequencies of
    those so far; None: too many.
    """
    both = (_times(_growth(side * losses, side * limit), -math.log(p)) for side, p in ((1, above), (-1, below)))
    fewest = min((times for times in both if times is not None), default=FAR)
    total = math.ceil(fewest * len(losses))
    return None if total >= FAR else max(1, total - len(losses))


def _growth(losses: np.ndarray, limit: float) -> np.ndarray:
    """Log of what each share makes of its part: a stake on a loss in -1..1 returns (1 + loss) / (1 + limit)."""
    returns, counts = np.unique((1 + losses) / max(1 + limit, _EDGE), return_counts=True)
    return np.log1p(SHARES[:, None] * (returns - 1)) @ counts


def _log_wealth(growth: np.ndarray) -> float:
    most = float(growth.max())
    return most + math.log(float(np.exp(growth - most).mean()))


def _lowest(losses: np.ndarray, p: float) -> float:
    """Return the smallest mean that is not refused for being too low, by bisection: the wealth falls with the mean."""
    low, high = -1.0, float(losses.mean())
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if p_above(losses, middle) <= p else (low, middle)
    return low


def _times(growth: np.ndarray, enough: float) -> float | None:
    """Return how often the same losses must come for a log wealth of `enough`; None if they never get there."""
    if growth.max() <= _EDGE:
        return None
    low, high = 1.0, 1.0
    while _log_wealth(high * growth) < enough:
        low, high = high, 2 * high
        if high > FAR:
            return None
    while high - low > 1e-3 * low:
        middle = (low + high) / 2
        low, high = (low, middle) if _log_wealth(middle * growth) >= enough else (middle, high)
    return high
