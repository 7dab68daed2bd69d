"""How often verdicts and gates are wrong, measured by simulation.

    python benchmarks/statistics/errors.py [--runs 2000]

Answers are 0/1 unless said otherwise. Noise of x % means that x % of the answers turn from right to wrong and x % from
wrong to right, by chance. Demanded of the gate with 20 tests: noise of 2 % alone fails at most 1 % of the runs; a drop
of 5 points over all 1600 questions is caught in 99 %, one of 15 points in one cell of 200 questions in 95 %.
"""

import argparse
import sys
from collections.abc import Callable

import numpy as np

from kvbench.report.stats.paired import Paired
from kvbench.report.stats.paired_tests import Regressions, detectable, holm, regressions, sign_flip

CELLS = 20
Make = Callable[[np.random.Generator], tuple[list[Paired], Paired]]


def main() -> None:
    """Print the tables; exit code 1 where a demand is not met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=2000)
    runs = parser.parse_args().runs
    failed = 0
    print(f"gate, {CELLS} cells, {runs} runs: share of runs that fail, and why")
    for name, make, low, high in gates():
        shares = gate(make, runs)
        met = low <= shares["fails"] <= high
        failed += not met
        demand = f"demanded {100 * low:g} to {100 * high:g} %" if (low, high) != (0, 1) else ""
        print(
            f"{name:<64}",
            *(f"{key} {100 * share:6.2f} %" for key, share in shares.items()),
            demand,
            sep="  ",
            flush=True,
        )
    print(f"compare, families of {CELLS}, {runs} runs: share of runs with at least one verdict")
    for n in (50, 200):
        for percent in (2, 10, 20):
            print(
                f"  n {n}, noise {percent} %: {100 * verdicts(n, percent / 100, runs):.2f} % (asked for: 5 %)",
                flush=True,
            )
    print("compare, one line: share of runs that find the difference that 'sees' promises for 80 %")
    for n, percent in ((50, 20), (50, 30), (200, 5), (200, 10), (200, 20), (1000, 2), (1000, 10), (1000, 20)):
        shift, detected = power(n, percent / 100, runs)
        print(
            f"  n {n}, {2 * percent} % differ: sees {100 * shift:.1f} points, found in {100 * detected:.1f} %",
            flush=True,
        )
    sys.exit(f"{failed} demands are not met" if failed else None)


def gates() -> list[tuple[str, Make, float, float]]:
    """Name, cells, and the least and largest share of runs that may fail."""
    return [
        ("noise 2 %, n 80", cells(80, 0.02), 0, 0.01),
        ("noise 2 %, n 200", cells(200, 0.02), 0, 0.01),
        ("noise 2 %, n 80, the same 80 questions in every cell", cells(80, 0.02, shared=0.5), 0, 0.01),
        ("noise 10 %, n 200", cells(200, 0.1), 0, 0.01),
        ("noise 2 % of F1-like answers, n 80", cells(80, 0.02, graded=True), 0, 0.01),
        ("5 points of 1600 questions, noise 2 %", cells(80, 0.02, 0.05), 0.99, 1),
        ("5 points of 1600 questions, noise 2 %, the same 80 questions", cells(80, 0.02, 0.05, shared=0.5), 0, 1),
        ("5 points of 1600 questions, noise 5 %", cells(80, 0.05, 0.05), 0, 1),
        ("5 points of 1600 questions, noise 10 %", cells(80, 0.1, 0.05), 0, 1),
        ("15 points in one cell of 200, noise 2 %", cells(200, 0.02, 0.15, only=3), 0.95, 1),
        ("15 points in one cell of 200, noise 5 %", cells(200, 0.05, 0.15, only=3), 0, 1),
        ("15 points in one cell of 200, noise 10 %", cells(200, 0.1, 0.15, only=3), 0, 1),
        ("10 points in one cell of 200, noise 2 %", cells(200, 0.02, 0.1, only=3), 0, 1),
        ("1 point of 1600 questions, noise 2 %", cells(80, 0.02, 0.01), 0, 1),
    ]


def cells(
    n: int, noise: float, drop: float = 0.0, only: int | None = None, shared: float = 0.0, graded: bool = False
) -> Make:
    """CELLS cells of n pairs, and all of them together.

    ``only``: the one cell that drops. ``shared``: the chance that a question does in one cell what it does in the
    first; then all cells have the same questions. ``graded``: an answer changes by any share, not by 1.
    """

    def make(generator: np.random.Generator) -> tuple[list[Paired], Paired]:
        lost = np.full((CELLS, 1), drop)
        if only is not None:
            lost[np.arange(CELLS) != only] = 0.0
        u = generator.random((CELLS, n))
        if shared:
            u = np.where(generator.random((CELLS, n)) < shared, u[0], u)
        size = generator.random((CELLS, n)) if graded else 1.0
        a = np.where(u < noise + lost, size, 0.0)
        b = np.where(u > 1 - noise, size, 0.0)
        questions = np.arange(n) if shared else np.arange(CELLS * n).reshape(CELLS, n)
        cluster = np.broadcast_to(questions, (CELLS, n)).ravel()
        return [Paired(*pair, np.arange(n)) for pair in zip(a, b, strict=True)], Paired(a.ravel(), b.ravel(), cluster)

    return make


def gate(make: Make, runs: int, seed: int = 0) -> dict[str, float]:
    """Share of runs that fail, that fail by the pooled test, and by a cell."""
    regressions_found: list[Regressions] = []
    for run in range(runs):
        regressions_found.append(regressions(*make(np.random.default_rng([seed, run]))))
    cell = [any(regression.worse) for regression in regressions_found]
    pooled = [regression.pooled_worse for regression in regressions_found]
    either = [regression or other for regression, other in zip(cell, pooled, strict=True)]
    return {"fails": float(np.mean(either)), "pooled": float(np.mean(pooled)), "cell": float(np.mean(cell))}


def verdicts(n: int, noise: float, runs: int, alpha: float = 0.05) -> float:
    """Share of families without any difference in which something is called better or worse."""
    wrong = 0
    for run in range(runs):
        family, _ = cells(n, noise)(np.random.default_rng([1, run]))
        wrong += min(holm([sign_flip(pairs.sums()[0]).p for pairs in family])) <= alpha
    return wrong / runs


def power(n: int, noise: float, runs: int, alpha: float = 0.05) -> tuple[float, float]:
    """What "sees" says where 2 x noise of n answers differ and none is lost, and how often that much is found."""
    generator = np.random.default_rng(2)
    count = round(noise * n)
    a, b = (np.repeat([1.0, 0.0, 0.0], [count, count, n - 2 * count]) for _ in range(2))
    shift = detectable(Paired(a, np.roll(b, count), np.arange(n)), alpha)
    assert shift is not None and shift < 2 * noise
    shares = [noise + shift / 2, noise - shift / 2, 1 - 2 * noise]
    draws = generator.multinomial(n, shares, size=runs)
    p = [sign_flip(np.repeat([-1.0, 1.0], [worse, better])).p for worse, better, _ in draws]
    return shift, float(np.mean(np.array(p) <= alpha))


if __name__ == "__main__":
    main()
