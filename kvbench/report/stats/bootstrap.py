"""95 % interval for the mean difference of pairs.

0/1 answers, no two about one context: Tango's score interval (`kvbench.report.stats.mcnemar`).

Everything else: the bootstrap over clusters, as Hesterberg's expanded percentile interval, "What teachers should know
about the bootstrap", The American Statistician 69 (2015) 371-386, section 3.3: the quantiles are taken a little further
out, so that the interval has the width of Student's and not that of a normal with a variance divided by n. For rates
two pseudo-clusters join before it, whose differences are + and - the root mean square of those that are not zero (1
where all are): where A and B mostly agree, the few differences seen say too little about those not seen, and a plain
bootstrap is too sure. For 0/1 answers that is what Bonett and Price, "Adjusted Wald confidence interval for a
difference of binomial proportions based on paired data", J. Educ. Behav. Stat. 37 (2012) 479-488, do.

Fewer than FEW clusters: Student's t on the same clusters, since resampling so few repeats a handful of means.

docs/statistics.md has the coverage of all of them and of what was tried beside them.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr, stdtrit

from kvbench.report.stats.mcnemar import tango
from kvbench.report.stats.paired import Paired

FEW = 10
RESAMPLES = 9_999
_BLOCK = 131_072  # weights made at a time: they stay in the processor's cache


@dataclass(frozen=True)
class Interval:
    """The limits, and how they were found: "tango", "bootstrap" or "student"; no limits and "" where nobody can say."""

    low: float | None
    high: float | None
    method: str


def interval(pairs: Paired, resamples: int = RESAMPLES, seed: int = 0) -> Interval:
    """The interval of the mean difference b - a; deterministic for a seed.

    None for fewer than two clusters, and for a quantity without bounds whose differences are all equal: there is no
    spread to learn from.
    """
    if pairs.binary and pairs.independent and pairs.n > 1:
        difference = pairs.difference
        return Interval(*tango(int((difference < 0).sum()), int((difference > 0).sum()), pairs.n), "tango")
    sums, sizes = pairs.sums()
    if len(sums) < 2 or (not pairs.rate and np.ptp(sums / sizes) == 0.0):
        return Interval(None, None, "")
    if pairs.rate:
        sums, sizes = with_pseudo_clusters(sums, sizes)
    if pairs.clusters < FEW:
        low, high, method = *student(sums, sizes), "student"
    else:
        low, high, method = *expanded_percentile(sums, sizes, resamples, seed), "bootstrap"
    if pairs.rate:
        low, high = max(float(low), -1.0), min(float(high), 1.0)
    return Interval(float(low), float(high), method)


def with_pseudo_clusters(sums: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Two more clusters of mean size: + and - the root mean square of the sums that are not zero, or 1 a pair.

    ``sums [..., clusters]``, ``sizes [clusters]``.
    """
    size = float(sizes.mean())
    count = (sums != 0.0).sum(-1)
    scale = np.where(count > 0, np.sqrt((sums**2).sum(-1) / np.maximum(count, 1)), size)[..., None]
    return np.concatenate([sums, scale, -scale], axis=-1), np.append(sizes, [size, size])


def student(sums: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Student's interval for the ratio of sums to sizes, clusters as the unit, linearised."""
    clusters = len(sizes)
    centre = sums.sum(-1) / sizes.sum()
    half = float(stdtrit(clusters - 1, 0.975)) * standard_error(sums, sizes)
    return centre - half, centre + half


def standard_error(sums: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Of the mean difference, robust to clusters: of sums / sizes as a ratio of means. ``sums [..., clusters]``."""
    clusters = len(sizes)
    residual = sums - (sums.sum(-1) / sizes.sum())[..., None] * sizes
    return np.sqrt((residual**2).sum(-1) * clusters / (clusters - 1)) / sizes.sum()


def expanded_percentile(
    sums: np.ndarray, sizes: np.ndarray, resamples: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """The interval of Hesterberg over clusters. ``sums [..., clusters]``: several data sets share the resamples."""
    clusters = len(sizes)
    tail = float(ndtr(np.sqrt(clusters / (clusters - 1)) * stdtrit(clusters - 1, 0.025)))
    low, high = np.quantile(resampled_means(sums, sizes, resamples, seed), [tail, 1 - tail], axis=-1)
    return low, high


def resampled_means(sums: np.ndarray, sizes: np.ndarray, resamples: int, seed: int) -> np.ndarray:
    """Means ``[..., resamples]`` over clusters drawn with replacement, as many as there are."""
    generator = np.random.default_rng(seed)
    clusters = len(sizes)
    rows = max(1, _BLOCK // clusters)
    means = []
    for start in range(0, resamples, rows):
        count = min(rows, resamples - start)
        drawn = generator.integers(clusters, size=(count, clusters)) + clusters * np.arange(count)[:, None]
        weights = np.bincount(drawn.ravel(), minlength=count * clusters).reshape(count, clusters).astype(float)
        means.append((sums @ weights.T) / (weights @ sizes))
    return np.concatenate(means, axis=-1)
