"""What n pairs can see: the smallest mean difference that a test at level alpha finds four times out of five."""

import numpy as np
from scipy.special import ndtri

from kvbench.report.stats.bootstrap import standard_error, with_pseudo_clusters
from kvbench.report.stats.paired import Paired

POWER = 0.8


def detectable(pairs: Paired, alpha: float) -> float | None:
    """The smallest true difference found with probability POWER at this n and this much disagreement; None below two.

    (z(1 - alpha/2) + z(POWER)) standard errors, those of the interval: for rates with its two pseudo-clusters. Never
    below what the sign-flip test can refuse at all, k = 1 + log2(1 / alpha) clusters that all point one way, as a share
    of the clusters: rates only, where a cluster can change by 1 at most. Lachin, Controlled Clinical Trials 2 (1981)
    93-113, equation 5; Connor, Biometrics 43 (1987) 207-211 for McNemar's test.
    """
    sums, sizes = pairs.sums()
    if len(sums) < 2:
        return None
    clusters = len(sums)
    if pairs.rate:
        sums, sizes = with_pseudo_clusters(sums, sizes)
    spread = float(ndtri(1 - alpha / 2) + ndtri(POWER)) * float(standard_error(sums, sizes))
    if not pairs.rate:
        return spread if spread > 0 else None
    return min(1.0, max(spread, float(np.ceil(1 + np.log2(1 / alpha))) / clusters))


def can_refuse(clusters: int, alpha: float) -> bool:
    """Whether any outcome of so many clusters gives a two-sided sign-flip p of at most alpha."""
    return 2.0 ** (1 - clusters) <= alpha
