"""Tests of paired differences: sign flips, McNemar, the smallest difference that they detect, and many tests at once.

Fisher, The Design of Experiments (1935), chapter 21: if A and B are equally good, the sign of a difference may be
flipped; p is the share of all sign patterns whose sum is at least as extreme as the observed one. Whole clusters are
flipped if questions share a context. It is exact by convolution if all differences are multiples of one step (0/1
answers, shares of 4 needles) up to LATTICE operations, and by enumeration up to ENUMERATED differences that are not
zero. Otherwise it is Monte Carlo, with the observed pattern counted among the drawn ones: Phipson and Smyth,
"Permutation P-values should never be zero", Statistical Applications in Genetics and Molecular Biology 9 (2010) 39.
Drawing continues until the count is settled or the cap is reached: Besag and Clifford, "Sequential Monte Carlo
p-values", Biometrika 78 (1991) 301-304.

Many tests: Holm, Tarone and Holm, and one family of a pooled test and a test per cell.

A sign-flip test of m differences that are not zero has no p below 2^-m, so a cell in which three answers changed cannot
be refused at 0.01 and does not need its share of alpha: Tarone, "A modified Bonferroni method for discrete data",
Biometrics 46 (1990) 515-522. After each refusal the remaining tests are considered anew: Goeman and Solari, "The
sequential rejection principle of familywise error control", Annals of Statistics 38 (2010) 3782-3810.

`regressions` asks whether anything became worse. A fifth of alpha goes to a pooled test of all rates, which detects a
loss too small for any single cell, ``OF_CELLS`` to the cells by the correction of Tarone and Holm: with it eight lost
answers of a cell suffice, and 50 prompts find a loss of 20 points. A test that refuses passes its part on to the other:
Bretz, Maurer, Brannath and Posch, "A graphical approach to sequentially rejective multiple test procedures", Statistics
in Medicine 28 (2009) 586-604. A run in which nothing is worse fails with a probability of
at most alpha, whatever the cells have in common: both tests are exact, and a cluster of the pooled test is a question,
however many cells answered it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import bdtr, gammaln, ndtri

from kvbench.report.stats.intervals import standard_error, with_pseudo_clusters
from kvbench.report.stats.paired import Paired
from kvbench.report.stats.power import POWER

ENUMERATED = 18
LATTICE = 50_000_000
BATCH = 20_000
SETTLED = 200
_DENOMINATORS = (1, 12, 120, 2520)  # tried up to each in turn; 2520 is the least common multiple of 1..10
_CLOSE = 1e-9
ALPHA = 0.005
OF_CELLS = 0.8


class SignFlip(NamedTuple):
    """p, and how it was found: "exact" or "monte carlo"."""

    p: float
    method: str


def sign_flip(sums: np.ndarray, alternative: str = "two-sided", finest: float = 1e-3, seed: int = 0) -> SignFlip:
    """Test that the sums of clusters (differences, if a cluster is one question) lie symmetrically around 0.

    ``alternative``: "two-sided", or "less" if only a negative sum counts. ``finest``: the p that must still be
    resolved, the threshold of the strictest step of a correction. ``seed``: of the generator, Monte Carlo only.
    """
    assert alternative in ("two-sided", "less") and sums.ndim == 1
    sums = sums[sums != 0.0]
    if not len(sums):
        return SignFlip(1.0, "exact")
    steps = _steps(sums)
    if steps is not None and len(sums) * 2 * int(np.abs(steps).sum()) <= LATTICE:
        return SignFlip(_tail(*_lattice(np.abs(steps)), float(steps.sum()), alternative), "exact")
    if len(sums) <= ENUMERATED:
        totals = np.zeros(1)  # of all sign patterns
        for magnitude in np.abs(sums):
            totals = np.concatenate([totals - magnitude, totals + magnitude])
        return SignFlip(_tail(totals, np.full(len(totals), 1 / len(totals)), float(sums.sum()), alternative), "exact")
    return SignFlip(_monte_carlo(sums, alternative, finest, seed), "monte carlo")


def _tail(totals: np.ndarray, weights: np.ndarray, observed: float, alternative: str) -> float:
    slack = _CLOSE * max(1.0, float(np.abs(totals).max()))
    extreme = totals <= observed + slack if alternative == "less" else np.abs(totals) >= abs(observed) - slack
    return min(1.0, float(weights[extreme].sum()))


def _lattice(magnitudes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the possible sums of signed whole numbers and their probabilities, equal magnitudes taken together."""
    distribution = np.ones(1)  # over -reach, -reach + 1, .., reach
    for magnitude, count in zip(*np.unique(magnitudes, return_counts=True), strict=True):
        flipped = np.arange(count + 1)
        binomial = np.exp(gammaln(count + 1) - gammaln(flipped + 1) - gammaln(count - flipped + 1) - count * np.log(2))
        wider = np.zeros(len(distribution) + 2 * int(magnitude) * int(count))
        for i, probability in enumerate(binomial):
            start = 2 * int(magnitude) * i
            wider[start : start + len(distribution)] += probability * distribution
        distribution = wider
    reach = (len(distribution) - 1) // 2
    return np.arange(-reach, reach + 1).astype(float), distribution


def _steps(sums: np.ndarray) -> np.ndarray | None:
    """Return sums as whole numbers of one step 1 / q with the smallest q up to the last of _DENOMINATORS, or None."""
    for first, last in zip((0, *_DENOMINATORS), _DENOMINATORS, strict=False):
        denominators = np.arange(first + 1, last + 1)
        for chunk in np.array_split(sums, max(1, len(sums) // 64)):
            scaled = np.outer(denominators, chunk)
            near = np.abs(scaled - np.round(scaled)) < _CLOSE * np.maximum(1, np.abs(scaled))
            denominators = denominators[near.all(1)]
            if not len(denominators):
                break
        else:
            steps = np.round(sums * denominators[0]).astype(np.int64)
            return steps // np.gcd.reduce(steps)
    return None


def _monte_carlo(sums: np.ndarray, alternative: str, finest: float, seed: int) -> float:
    generator = np.random.default_rng(seed)
    observed, slack = float(sums.sum()), _CLOSE * float(np.abs(sums).sum())
    cap = max(BATCH, int(np.ceil(20 / finest)))
    rows = max(1, 4_000_000 // len(sums))
    extreme = num_draws = 0
    while num_draws < cap and extreme < SETTLED:
        for start in range(0, BATCH, rows):
            count = min(rows, BATCH - start)
            bits = np.unpackbits(generator.integers(256, size=(count, -(-len(sums) // 8)), dtype=np.uint8), axis=1)
            totals = 2.0 * (bits[:, : len(sums)] @ sums) - sums.sum()
            extreme += int(
                (totals <= observed + slack if alternative == "less" else np.abs(totals) >= abs(observed) - slack).sum()
            )
        num_draws += BATCH
    return (extreme + 1) / (num_draws + 1)


def mcnemar(only_a: int, only_b: int) -> float:
    """Return two-sided exact p from the number of questions in which only A, and only B, is right.

    McNemar, "Note on the sampling error of the difference between correlated proportions or percentages", Psychometrika
    12 (1947) 153-157.
    """
    return min(1.0, 2.0 * float(bdtr(min(only_a, only_b), only_a + only_b, 0.5)))


def detectable(paired: Paired, alpha: float) -> float | None:
    """Return the smallest true difference found with probability POWER at this n and this much disagreement; None where
    the sign-flip test can refuse nothing at this n.

    (z(1 - alpha/2) + z(POWER)) standard errors, as of the interval: for rates with its two pseudo-clusters. Never
    below what the sign-flip test can refuse at all, k = 1 + log2(1 / alpha) clusters that all point one way, as a share
    of the clusters: rates only, where a cluster changes by 1 at most. Graded values change by less, so that for them
    this is too large rather than too small. Lachin, Controlled Clinical Trials 2 (1981)
    93-113, equation 5; Connor, Biometrics 43 (1987) 207-211 for McNemar's test.
    """
    sums, sizes = paired.sums()
    clusters, fewest = len(sums), float(np.ceil(1 + np.log2(1 / alpha)))
    if clusters < fewest:
        return None
    if paired.rate:
        sums, sizes = with_pseudo_clusters(sums, sizes)
    spread = float(ndtri(1 - alpha / 2) + ndtri(POWER)) * float(standard_error(sums, sizes))
    if not paired.rate:
        return spread if spread > 0 else None
    return min(1.0, max(spread, fewest / clusters))


@dataclass(frozen=True)
class Regressions:
    """One-sided p and decision of every cell, and of the pooled test (None without one).

    ``threshold pooled_threshold``: what p was compared with; for the cells, at the last step.
    """

    cells: tuple[float, ...]
    worse: tuple[bool, ...]
    threshold: float
    pooled: float | None
    pooled_worse: bool
    pooled_threshold: float


def regressions(cells: Sequence[Paired], pooled: Paired | None, alpha: float = ALPHA) -> Regressions:
    """Test each cell, and all of them pooled, for a loss from a (baseline) to b (current)."""
    sums = [paired.gain().sums()[0] for paired in cells]
    of_cells, of_pooled = OF_CELLS * alpha, (1 - OF_CELLS) * alpha
    p = tuple(sign_flip(differences, "less", of_cells / len(sums)).p for differences in sums)
    least = [2.0 ** -int((differences != 0).sum()) for differences in sums]
    if pooled is None:
        worse, threshold = tarone_holm(p, least, alpha)
        return Regressions(p, worse, threshold, None, False, alpha)
    together: np.ndarray = pooled.gain().sums()[0]
    p_pooled = sign_flip(together, "less", of_pooled).p
    first = p_pooled <= of_pooled
    worse, threshold = tarone_holm(p, least, alpha if first else of_cells)
    level = alpha if all(worse) else of_pooled
    return Regressions(p, worse, threshold, p_pooled, p_pooled <= level, level)


def holm(p: Sequence[float]) -> list[float]:
    """Return adjusted p values, in the order given; they are compared with alpha each. Needs no independence.

    Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6 (1979) 65-70.
    """
    order = np.argsort(p, kind="stable")
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(np.arange(len(p), 0, -1) * np.asarray(p, float)[order]))
    return adjusted.tolist()


def tarone_holm(p: Sequence[float], lowest: Sequence[float], alpha: float) -> tuple[tuple[bool, ...], float]:
    """Return which nulls are refused, and the last threshold.

    ``p``: of every test. ``lowest``: the smallest p that each could give. With ``lowest`` all 0 it is Holm's procedure.
    """
    remaining = list(range(len(p)))
    refused = [False] * len(p)
    while remaining:
        limit = threshold([lowest[i] for i in remaining], alpha)
        smallest = min(remaining, key=lambda i: p[i])
        if p[smallest] > limit:
            return tuple(refused), limit
        refused[smallest] = True
        remaining.remove(smallest)
    return tuple(refused), alpha


def threshold(least: Sequence[float], alpha: float) -> float:
    """Tarone's alpha / K, of one or more tests."""
    ordered = np.sort(np.asarray(least, dtype=float))
    return alpha / next(k for k in range(1, len(ordered) + 1) if np.searchsorted(ordered, alpha / k, "right") <= k)
