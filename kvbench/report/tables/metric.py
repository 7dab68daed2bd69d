"""What the report knows about a metric: whether it is a rate (printed x100), which end is good, how it is shown.

Every metric is a rate in 0..1 with high values better, but for the names below. ``nll``, the mean negative
log-likelihood of a sample's tokens in nats, is shown as perplexity.
"""

import math
from collections.abc import Sequence

import numpy as np

from kvbench.report.stats.interval import student, student_quantile

LOWER_IS_BETTER = frozenset({"perplexity", "nll", "bits_per_byte", "seconds_per_token"})


def is_rate(metric: str | None, values: Sequence[float] | np.ndarray) -> bool:
    """Whether values of this metric are shares in 0..1. A value outside says no, whatever the name."""
    numbers = np.asarray(values, float)
    return metric not in LOWER_IS_BETTER and bool(np.all((numbers >= 0.0) & (numbers <= 1.0)))


def higher_is_better(metric: str | None) -> bool:
    """Whether the larger of two values of this metric is the better one."""
    return metric not in LOWER_IS_BETTER


def shown(metric: str | None) -> str | None:
    """The name under which means of this metric are reported."""
    return "perplexity" if metric == "nll" else metric


def perplexity(nll: Sequence[float], tokens: Sequence[float]) -> tuple[float, float | None, float | None]:
    """(perplexity, low, high): exp of the mean over all tokens of all samples, and its 95 % interval.

    ``nll``: nats a token, one number a sample. ``tokens``: how many tokens each was taken over; where one is not known
    (NaN), every sample weighs the same. The interval is Student's for the weighted mean m, with samples as the units
    that vary (texts, not tokens, are drawn): m +- t(n - 1) sqrt(n / (n - 1) sum w^2 (x - m)^2) / sum w, the ratio
    estimator of Cochran, "Sampling Techniques", 3rd edition (1977), section 6.4. With equal weights it is that of
    `kvbench.report.stats.interval`.
    """
    n = len(nll)
    weights = [1.0] * n if any(not count > 0 for count in tokens) else list(tokens)
    total = math.fsum(weights)
    mean = math.fsum(w * x for w, x in zip(weights, nll, strict=True)) / total
    if n == 1:
        return _exp(mean), None, None
    if len(set(weights)) == 1:
        low, high = student(nll)
    else:
        squares = math.fsum((w * (x - mean)) ** 2 for w, x in zip(weights, nll, strict=True))
        half = student_quantile(n - 1) * math.sqrt(n / (n - 1) * squares) / total
        low, high = mean - half, mean + half
    return _exp(mean), _exp(low), _exp(high)


def _exp(nats: float) -> float:
    return math.exp(nats) if nats < 700 else math.inf
