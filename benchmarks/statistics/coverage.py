"""How often the 95 % interval of `kvbench compare` holds the true difference, measured by simulation.

    python benchmarks/statistics/coverage.py [--runs 4000] [--resamples 1999] [--all]

Pairs are drawn from known distributions: A and B read the same question, whose difficulty they share with probability
`copied`, and draw anew otherwise. Columns: the interval that is used, and beside it what else was tried: the plain
percentile bootstrap, BCa (Efron, JASA 82 (1987) 171-185), the studentised bootstrap (Hall, Annals of Statistics 16
(1988) 927-953), Student's t, and the bootstrap that is used for all but 0/1 answers. Simulated data sets share their
resamples; the first of each design is checked against `kvbench.report.stats.intervals.interval` itself.
"""

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import ndtr, ndtri

from kvbench.report.stats.intervals import (
    FEW,
    expanded_percentile,
    interval,
    resampled_means,
    standard_error,
    student_of_clusters,
    tango,
    with_pseudo_clusters,
)
from kvbench.report.stats.paired import Paired

Draw = Callable[[np.random.Generator, int, int], tuple[np.ndarray, np.ndarray]]  # runs, pairs -> a, b [runs, pairs]
Limits = tuple[np.ndarray, np.ndarray]
TRUTH = 8_000_000  # pairs from which a true difference is known to about 0.0001


@dataclass(frozen=True)
class Design:
    """A distribution of pairs. ``demanded``: 93.5 to 96.5 % is asked of it at n = 50, 200 and 1000."""

    name: str
    draw: Draw
    rate: bool = True
    binary: bool = False
    demanded: bool = True
    questions: int = 1  # about one context, at most


def qualities(runs: int, n: int, copied: float, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Two uniform numbers a pair: the same with probability ``copied``, independent otherwise."""
    first, second = generator.random((2, runs, n))
    return first, np.where(generator.random((runs, n)) < copied, first, second)


def binary(right_a: float, right_b: float, copied: float, demanded: bool = True) -> Design:
    """0/1 answers."""

    def draw(generator: np.random.Generator, runs: int, n: int) -> tuple[np.ndarray, np.ndarray]:
        u, v = qualities(runs, n, copied, generator)
        return (u < right_a).astype(float), (v < right_b).astype(float)

    changed = (1 - copied) * (right_a * (1 - right_b) + right_b * (1 - right_a)) + copied * abs(right_a - right_b)
    return Design(f"0/1 {right_a:g} to {right_b:g}, {100 * changed:.0f} % differ", draw, True, True, demanded)


def f1(shift: float, copied: float, demanded: bool = True, steps: int = 0) -> Design:
    """Shares with many zeros and ones: a third are 0, a fifth 1, the rest between; B has ``shift`` more zeros."""

    def value(u: np.ndarray, lost: float) -> np.ndarray:
        lower, upper = 0.35 + lost, 0.8 + lost / 2
        between = np.clip((u - lower) / (upper - lower), 0, 1) ** 1.3
        answer = np.where(u < lower, 0.0, np.where(u > upper, 1.0, between))
        return np.round(steps * answer) / steps if steps else answer

    def draw(generator: np.random.Generator, runs: int, n: int) -> tuple[np.ndarray, np.ndarray]:
        u, v = qualities(runs, n, copied, generator)
        return value(u, 0.0), value(v, shift)

    kind = f"shares of {steps}" if steps else "F1-like"
    return Design(f"{kind}, {100 * shift:g} % lost, {100 * copied:g} % copied", draw, demanded=demanded)


def nats(shift: float, spread: float) -> Design:
    """Negative log-likelihoods: every text changes a little, by a skewed amount."""

    def draw(generator: np.random.Generator, runs: int, n: int) -> tuple[np.ndarray, np.ndarray]:
        a = generator.normal(2, 0.5, (runs, n))
        return a, a + shift + spread * (generator.standard_exponential((runs, n)) - 1)

    return Design(f"nll, +{shift:g}, spread {spread:g}", draw, rate=False, demanded=False)


DESIGNS = (
    binary(0.7, 0.6, 0.0),
    binary(0.7, 0.6, 0.5),
    binary(0.9, 0.85, 0.5),
    binary(0.7, 0.65, 0.8),
    f1(0.1, 0.0),
    f1(0.3, 0.5),
    f1(0.1, 0.5),
    f1(0.05, 0.8),
    f1(0.1, 0.5, steps=4),
)
HARD = (
    binary(0.9, 0.88, 0.8, demanded=False),
    binary(0.95, 0.95, 0.9, demanded=False),
    f1(0.0, 0.8, demanded=False),
    f1(0.02, 0.9, demanded=False),
    nats(0.1, 0.02),
    nats(0.1, 0.3),
)
SIZES = (50, 200, 1000)


def main() -> None:
    """Print the tables; exit code 1 where coverage leaves 93.5 to 96.5 % on a demanded design."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=4000)
    parser.add_argument("--resamples", type=int, default=1999)
    parser.add_argument("--all", action="store_true", help="what else was tried, hard designs, few samples, contexts")
    options = parser.parse_args()
    print(f"{options.runs} runs a number: 95.0 % is measured to within {196 * (0.0475 / options.runs) ** 0.5:.1f}")
    outside = 0
    for designs in (DESIGNS, *((HARD,) if options.all else ())):
        for design in designs:
            true = truth(design)
            for n in SIZES:
                shares = coverage(design, n, options.runs, options.resamples, true, options.all)
                outside += design.demanded and not 0.935 <= shares["used"] <= 0.965
                show(design.name, f"n {n}", shares)
    if options.all:
        for n in (5, 8, 20):
            for design in (DESIGNS[1], DESIGNS[6], HARD[5]):
                show(design.name, f"n {n}", coverage(design, n, options.runs, options.resamples, truth(design), False))
        for contexts in (30, 100):
            for design in (DESIGNS[1], DESIGNS[6]):
                shares = clustered(design, contexts, options.runs, options.resamples, truth(design))
                show(design.name, f"{contexts} contexts of 1 to 9", shares)
    sys.exit(f"{outside} demanded coverages outside 93.5 to 96.5 %" if outside else None)


def show(name: str, size: str, shares: dict[str, float]) -> None:
    """One line of the table, in percent."""
    print(
        f"{name:<38} {size:<22}", *(f"{key} {100 * share:5.1f}" for key, share in shares.items()), sep="  ", flush=True
    )


def truth(design: Design, pairs: int = TRUTH) -> float:
    """The true mean difference, from very many pairs."""
    generator = np.random.default_rng(2**31)
    parts = [design.draw(generator, 1, pairs // 16) for _ in range(16)]
    return float(np.mean([np.mean(b - a) for a, b in parts]))


def coverage(
    design: Design, n: int, runs: int, resamples: int, true: float, everything: bool, seed: int = 0
) -> dict[str, float]:
    """Share of runs whose interval holds the truth, for the interval that is used and, if asked, for the others."""
    a, b = design.draw(np.random.default_rng([seed, n]), runs, n)
    sums, sizes = b - a, np.ones(n)
    limits = {"used": used(design, sums, sizes, resamples)}
    product = interval(Paired(a[0], b[0], np.arange(n), design.rate), resamples)
    assert product.low is not None and product.high is not None
    assert np.allclose((product.low, product.high), [limit[0] for limit in limits["used"]], atol=1e-9)
    if everything:
        limits |= others(design, sums, sizes, resamples)
    return {name: share(low, high, true) for name, (low, high) in limits.items()}


def clustered(design: Design, contexts: int, runs: int, resamples: int, true: float) -> dict[str, float]:
    """Questions about one context share half of their quality; beside it, what forgetting that would give."""
    generator = np.random.default_rng([7, contexts])
    sizes = generator.integers(1, 10, contexts)
    cluster = np.repeat(np.arange(contexts), sizes)
    shared_draw = [side[:, cluster] for side in design.draw(generator, runs, contexts)]
    own = design.draw(generator, runs, len(cluster))
    shared = generator.random((runs, len(cluster))) < 0.5
    a, b = (np.where(shared, together, alone) for together, alone in zip(shared_draw, own, strict=True))
    sums = np.add.reduceat(b - a, np.concatenate([[0], np.cumsum(sizes)[:-1]]), axis=1)
    limits = expanded_percentile(*with_pseudo_clusters(sums, sizes.astype(float)), resamples, 0)
    naive = student_of_clusters(b - a, np.ones(len(cluster)))
    return {"used": share(*limits, true), "as if independent": share(*naive, true)}


def share(low: np.ndarray, high: np.ndarray, true: float) -> float:
    """Of the intervals that hold the truth, a limit that meets it included."""
    return float(np.mean((low <= true + 1e-4) & (true - 1e-4 <= high)))


def used(design: Design, sums: np.ndarray, sizes: np.ndarray, resamples: int) -> Limits:
    """What `kvbench.report.stats.intervals.interval` does, for many data sets at once."""
    if design.binary:
        score = lru_cache(maxsize=None)(tango)
        shares = [score(int((row < 0).sum()), int((row > 0).sum()), len(row)) for row in sums]
        return np.array([low for low, _ in shares]), np.array([high for _, high in shares])
    low, high = smoothed(sums, sizes, resamples) if design.rate else plain(sums, sizes, resamples)
    return (np.maximum(low, -1), np.minimum(high, 1)) if design.rate else (low, high)


def smoothed(sums: np.ndarray, sizes: np.ndarray, resamples: int) -> Limits:
    """The bootstrap of rates, with its two pseudo-clusters."""
    few = len(sizes) < FEW
    sums, sizes = with_pseudo_clusters(sums, sizes)
    return student_of_clusters(sums, sizes) if few else expanded_percentile(sums, sizes, resamples, 0)


def plain(sums: np.ndarray, sizes: np.ndarray, resamples: int) -> Limits:
    """The bootstrap without them."""
    return student_of_clusters(sums, sizes) if len(sizes) < FEW else expanded_percentile(sums, sizes, resamples, 0)


def others(design: Design, sums: np.ndarray, sizes: np.ndarray, resamples: int) -> dict[str, Limits]:
    """What else was tried, on pairs that share no context."""
    n = len(sizes)
    centre, error = sums.mean(-1), standard_error(sums, sizes)
    means = resampled_means(sums, sizes, resamples, 0)
    squares = resampled_means(sums**2, sizes, resamples, 0)
    low, high = np.quantile(means, [0.025, 0.975], axis=-1)
    limits = {"percentile": (low, high)}
    below = np.mean(means < centre[:, None] - 1e-9, axis=-1) + np.mean(means <= centre[:, None] + 1e-9, axis=-1)
    bias = ndtri(np.clip(below / 2, 1e-4, 1 - 1e-4))
    centred = sums - centre[:, None]
    skew = (centred**3).sum(-1) / (6 * np.maximum((centred**2).sum(-1), 1e-12) ** 1.5)
    means.sort(axis=-1)
    ends = []
    for z in (-1.959964, 1.959964):
        place = ndtr(bias + (bias + z) / (1 - skew * (bias + z)))
        ends.append(means[np.arange(len(means)), np.clip((place * resamples).astype(int), 0, resamples - 1)])
    limits["BCa"] = (ends[0], ends[1])
    means = resampled_means(sums, sizes, resamples, 0)
    errors = np.sqrt(np.maximum(squares - means**2, 0) / (n - 1))
    t = np.where(errors > 1e-9, (means - centre[:, None]) / np.maximum(errors, 1e-9), 0.0)
    t_low, t_high = np.quantile(t, [0.025, 0.975], axis=-1)
    limits["studentised"] = (centre - t_high * error, centre - t_low * error)
    limits["Student"] = student_of_clusters(sums, sizes)
    if design.binary:
        limits["smoothed"] = smoothed(sums, sizes, resamples)
    return limits


if __name__ == "__main__":
    main()
