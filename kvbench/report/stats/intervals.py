"""95 % intervals: of a mean over samples, of a perplexity, and of the mean difference of paired values.

benchmarks/results/statistics.md has the coverage of these methods and of the alternatives.

Wilson, "Probable inference, the law of succession, and statistical inference", JASA 22 (1927) 209-212; equation (4) of
Brown, Cai and DasGupta, "Interval estimation for a binomial proportion", Statistical Science 16 (2001) 101-133.
Student, "The probable error of a mean", Biometrika 6 (1908) 1-25.
Tango, "Equivalence test and confidence interval for the difference in proportions for the paired-sample design",
Statistics in Medicine 17 (1998) 891-908, equations 8 to 12.
Hesterberg, "What teachers should know about the bootstrap", The American Statistician 69 (2015) 371-386, section 3.3:
the expanded percentile interval has the width of Student's. Bonett and Price, "Adjusted Wald confidence interval for a
difference of binomial proportions based on paired data", J. Educ. Behav. Stat. 37 (2012) 479-488: the pseudo-clusters,
because few observed differences say too little about the others.
Dean and Pagano, "Evaluating confidence interval methods for binomial proportions in clustered surveys", J. Surv. Stat.
Methodol. 3 (2015) 484-503: Wilson's interval for the effective number of answers.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.special import ndtr, stdtrit

from kvbench.report.stats.paired import Paired

FEW = 10
RESAMPLES = 9_999
NORMAL_QUANTILE = 1.959963984540054  # Phi(x) = 0.975
_BLOCK = 131_072  # weights made at a time: they stay in the processor's cache
_KEPT = 2**23  # weights that are kept for the next interval, of two bytes each


@dataclass(frozen=True)
class Interval:
    """The limits and their method: "tango", "bootstrap" or "student"; None and "" if there is no interval."""

    low: float | None
    high: float | None
    method: str


def interval(paired: Paired, resamples: int = RESAMPLES, seed: int = 0) -> Interval:
    """Return the interval of the mean difference b - a; deterministic for a seed.

    None for fewer than two clusters, and for a quantity without bounds whose differences are all equal: there is no
    spread to estimate from.
    """
    if paired.binary and paired.independent and paired.n > 1:
        difference = paired.difference
        return Interval(*tango(int((difference < 0).sum()), int((difference > 0).sum()), paired.n), "tango")
    sums, sizes = paired.sums()
    if len(sums) < 2 or (not paired.rate and np.ptp(sums / sizes) == 0.0):
        return Interval(None, None, "")
    if paired.rate:
        sums, sizes = with_pseudo_clusters(sums, sizes)
    if paired.clusters < FEW:  # resampling so few repeats a handful of means
        low, high, method = *student_of_clusters(sums, sizes), "student"
    else:
        low, high, method = *expanded_percentile(sums, sizes, resamples, seed), "bootstrap"
    if paired.rate:
        low, high = max(float(low), -1.0), min(float(high), 1.0)
    return Interval(float(low), float(high), method)


def estimates(paired: Paired, limits: Interval) -> dict[str, Any]:
    """Return the columns of a line of paired values: n, clusters, both means, their difference and its limits."""
    return {
        "n": paired.n,
        "clusters": paired.clusters,
        "mean_a": float(paired.a.mean()),
        "mean_b": float(paired.b.mean()),
        "difference": float(paired.difference.mean()),
        "low": limits.low,
        "high": limits.high,
    }


def with_pseudo_clusters(sums: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return two more clusters of mean size: + and - the root mean square of the sums that are not zero, or 1 per
    question.

    ``sums [..., clusters]``, ``sizes [clusters]``.
    """
    size = float(sizes.mean())
    count = (sums != 0.0).sum(-1)
    scale = np.where(count > 0, np.sqrt((sums**2).sum(-1) / np.maximum(count, 1)), size)[..., None]
    return np.concatenate([sums, scale, -scale], axis=-1), np.append(sizes, [size, size])


def student_of_clusters(sums: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Student's interval for the ratio of sums to sizes, clusters as the unit, linearised."""
    centre = sums.sum(-1) / sizes.sum()
    half = student_quantile(len(sizes) - 1) * standard_error(sums, sizes)
    return centre - half, centre + half


def standard_error(sums: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Of the mean difference, robust to clusters: of sums / sizes as a ratio of means. ``sums [..., clusters]``."""
    clusters = len(sizes)
    residual = sums - (sums.sum(-1) / sizes.sum())[..., None] * sizes
    return np.sqrt((residual**2).sum(-1) * clusters / (clusters - 1)) / sizes.sum()


def expanded_percentile(
    sums: np.ndarray, sizes: np.ndarray, resamples: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the interval of Hesterberg. ``sums [..., clusters]``: several data sets share the resamples."""
    clusters = len(sizes)
    tail = float(ndtr(np.sqrt(clusters / (clusters - 1)) * stdtrit(clusters - 1, 0.025)))
    low, high = np.quantile(resampled_means(sums, sizes, resamples, seed), [tail, 1 - tail], axis=-1)
    return low, high


def resampled_means(sums: np.ndarray, sizes: np.ndarray, resamples: int, seed: int) -> np.ndarray:
    """Means ``[..., resamples]`` over clusters drawn with replacement, as many as there are."""
    is_kept = resamples * len(sizes) <= _KEPT
    means = []
    for counts in (_kept_draws if is_kept else _draws)(len(sizes), resamples, seed):
        weights = counts.astype(float)
        means.append((sums @ weights.T) / (weights @ sizes))
    return np.concatenate(means, axis=-1)


def _draws(clusters: int, resamples: int, seed: int) -> Iterator[np.ndarray]:
    """Yield how often each cluster is drawn ``[block, clusters]``, in blocks of resamples."""
    generator = np.random.default_rng(seed)
    rows = max(1, _BLOCK // clusters)
    for start in range(0, resamples, rows):
        count = min(rows, resamples - start)
        drawn = generator.integers(clusters, size=(count, clusters)) + clusters * np.arange(count)[:, None]
        yield np.bincount(drawn.ravel(), minlength=count * clusters).reshape(count, clusters)


@lru_cache(maxsize=2)
def _kept_draws(clusters: int, resamples: int, seed: int) -> tuple[np.ndarray, ...]:
    """Return the draws, kept for the next interval of as many clusters: a table has hundreds of them."""
    return tuple(counts.astype(np.uint16) for counts in _draws(clusters, resamples, seed))


def mean_interval(
    values: Sequence[float], rate: bool, cluster: np.ndarray | None = None
) -> tuple[float, float | None, float | None]:
    """(mean, low, high) of one or more values; no interval for one value. ``rate``: the values lie in 0..1.

    ``cluster[n]``: the number of each value's context. Where values share one, contexts are the units.
    """
    assert len(values) > 0
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return mean, None, None
    if cluster is not None and (clusters := int(cluster.max()) + 1) < len(values):
        return mean, *_clustered(np.asarray(values), rate, cluster, clusters)
    if rate and all(value in (0.0, 1.0) for value in values):
        return mean, *wilson(sum(value == 1.0 for value in values), len(values))
    if rate and min(values) == max(values):  # no spread to estimate from: as wide as for right and wrong answers
        return mean, *wilson(math.fsum(values), len(values))
    low, high = student(values)
    return (mean, max(low, 0.0), min(high, 1.0)) if rate else (mean, low, high)


def _clustered(values: np.ndarray, rate: bool, cluster: np.ndarray, clusters: int) -> tuple[float | None, float | None]:
    """With contexts as units: Student's interval of a ratio of means; of right and wrong answers Wilson's for as many
    independent ones as would have the same standard error."""
    if clusters < 2:
        return None, None
    sums, sizes = np.bincount(cluster, weights=values), np.bincount(cluster).astype(float)
    if rate and np.ptp(values) == 0.0:
        return wilson(float(values[0]) * clusters, clusters)
    if rate and np.isin(values, (0.0, 1.0)).all():
        share, error, t = float(values.mean()), float(standard_error(sums, sizes)), student_quantile(clusters - 1)
        alone = share * (1 - share) / error**2 * (NORMAL_QUANTILE / t) ** 2 if error else clusters
        n = min(alone, float(len(values)))
        return wilson(share * n, n)
    low, high = map(float, student_of_clusters(sums, sizes))
    return (max(low, 0.0), min(high, 1.0)) if rate else (low, high)


def wilson(hits: float, n: float) -> tuple[float, float]:
    """Wilson's 95 % interval for the probability behind ``hits`` of ``n``."""
    z2 = NORMAL_QUANTILE**2
    centre = (hits + z2 / 2) / (n + z2)
    half = NORMAL_QUANTILE / (n + z2) * math.sqrt(hits * (n - hits) / n + z2 / 4)
    low = 0.0 if hits == 0 else centre - half  # exact at the ends, where rounding would leave 1e-17
    high = 1.0 if hits == n else centre + half
    return low, high


def student(values: Sequence[float], weights: Sequence[float] = ()) -> tuple[float, float]:
    """Student's 95 % interval for the mean behind two or more values, or for their weighted mean.

    The same for values in any order. The weighted mean is the ratio estimator of Cochran, "Sampling Techniques", 3rd
    edition (1977), section 6.4, with values as the units.
    """
    n, weights = len(values), weights or [1.0] * len(values)
    total = math.fsum(weights)
    mean = math.fsum(w * x for w, x in zip(weights, values, strict=True)) / total
    squares = math.fsum((w * (x - mean)) ** 2 for w, x in zip(weights, values, strict=True))
    half = student_quantile(n - 1) * math.sqrt(n / (n - 1) * squares) / total
    return mean - half, mean + half


def weighted_interval(
    mean: float, parts: Sequence[tuple[float, float | None, int]], rate: bool
) -> tuple[float | None, float | None]:
    """Return the interval of a weighted sum of independent means: m +- 1.96 sqrt(sum w^2 s^2 / n), for rates within
    0..1.

    parts: weight, variance and n of each mean. There is none if a variance is unknown, such as a single sample's.
    """
    squares = [weight**2 * variance / n for weight, variance, n in parts if variance is not None]
    if len(squares) < len(parts):
        return None, None
    half = NORMAL_QUANTILE * math.sqrt(math.fsum(squares))
    return (max(0.0, mean - half), min(1.0, mean + half)) if rate else (mean - half, mean + half)


@lru_cache(maxsize=1024)
def student_quantile(degrees: int) -> float:
    """t with P(|T| <= t) = 0.95 for an integer number of degrees of freedom."""
    return float(stdtrit(degrees, 0.975))


def tango(only_a: int, only_b: int, n: int) -> tuple[float, float]:
    """Tango's 95 % interval for P(B right) - P(A right), from n questions."""
    assert n > 0 and min(only_a, only_b) >= 0 and only_a + only_b <= n
    high = _limit(only_b, only_a, n)
    return -_limit(only_a, only_b, n), high


def _limit(gained: int, lost: int, n: int) -> float:
    """Return the largest difference whose score statistic, which falls with it, is at least -NORMAL_QUANTILE."""
    inside, outside = (gained - lost) / n, 1.0
    for _ in range(60):
        middle = (inside + outside) / 2
        if tango_score(gained, lost, n, middle) >= -NORMAL_QUANTILE:
            inside = middle
        else:
            outside = middle
    return (inside + outside) / 2


def tango_score(gained: int, lost: int, n: int, difference: float) -> float:
    """Equation 9, with the restricted maximum likelihood estimate of P(only A right) of equations 11 and 12."""
    linear = -gained - lost + (2 * n - gained + lost) * difference
    constant = -lost * difference * (1 - difference)
    nuisance = (math.sqrt(max(linear**2 - 8 * n * constant, 0.0)) - linear) / (4 * n)
    variance = n * (2 * nuisance + difference * (1 - difference))
    distance = gained - lost - n * difference
    return distance / math.sqrt(variance) if variance > 0 else math.copysign(math.inf, distance) if distance else 0.0


def perplexity(nll: Sequence[float], tokens: Sequence[float]) -> tuple[float, float | None, float | None]:
    """(perplexity, low, high): exp of the mean over all tokens of all samples, and its 95 % interval by Student.

    ``nll``: nats per token, one number per sample. ``tokens``: how many tokens each is over; if one is unknown (NaN),
    every sample weighs the same.
    """
    weights = [1.0] * len(nll) if any(not count > 0 for count in tokens) else list(tokens)
    mean = math.fsum(w * x for w, x in zip(weights, nll, strict=True)) / math.fsum(weights)
    if len(nll) == 1:
        return _exp(mean), None, None
    low, high = student(nll, weights)
    return _exp(mean), _exp(low), _exp(high)


def _exp(nats: float) -> float:
    """Return the exponential, at most e^700, which a float still holds."""
    return math.exp(min(nats, 700.0))
