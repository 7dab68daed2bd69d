"""Properties of metrics: whether values are rates (printed x100), whether higher is better, the name in reports.

Every metric is a rate in 0..1 with high values better, but for the names below. ``nll``, the mean negative
log-likelihood of a sample's tokens in nats, is shown as perplexity.
"""

from collections.abc import Sequence

import numpy as np

from kvbench.records.row import RATE

LOWER_IS_BETTER = frozenset({"perplexity", "nll", "bits_per_byte", "seconds_per_token"})


def is_rate(metric: str | None, values: Sequence[float] | np.ndarray) -> bool:
    """Whether values of this metric are shares in 0..1: of a plugin's metric they are, unless one is outside."""
    if RATE.fullmatch(metric or ""):
        return True
    numbers = np.asarray(values, float)
    return metric not in LOWER_IS_BETTER and bool(np.all((numbers >= 0.0) & (numbers <= 1.0)))


def higher_is_better(metric: str | None) -> bool:
    """Whether the larger of two values of this metric is the better one."""
    return metric not in LOWER_IS_BETTER


def shown(metric: str | None) -> str | None:
    """The name under which means of this metric are reported."""
    return "perplexity" if metric == "nll" else metric
