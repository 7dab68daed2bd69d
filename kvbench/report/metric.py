"""What the report knows about a metric: whether it is a rate (printed x100) and which end is good.

Every metric is a rate in 0..1 with high values better, but for the names below.
"""

from collections.abc import Iterable

LOWER_IS_BETTER = frozenset({"perplexity", "nll", "bits_per_byte"})


def is_rate(metric: str | None, values: Iterable[float]) -> bool:
    """Whether values of this metric are shares in 0..1. A value outside says no, whatever the name."""
    return metric not in LOWER_IS_BETTER and all(0.0 <= value <= 1.0 for value in values)


def higher_is_better(metric: str | None) -> bool:
    """Whether the larger of two values of this metric is the better one."""
    return metric not in LOWER_IS_BETTER
