"""The interval of a share."""

import math


def wilson(successes: float, n: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share."""
    z, p = 1.959964, successes / n
    centre, spread = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return (centre - spread) / (1 + z * z / n), (centre + spread) / (1 + z * z / n)
