"""All pairs of methods tested on the same prompts, and the groups of methods that no test tells apart.

Under the null hypothesis of a pair the signs of its differences may be flipped (`kvbench.report.stats.paired_tests`).
All pairs share the flips, so that what they have in common is kept, and p is corrected for all of them by the step-down
maximum: Westfall and Young, "Resampling-Based Multiple Testing" (1993), algorithm 2.8; Ge, Dudoit and Speed,
"Resampling-based multiple testing for microarray data analysis", Test 12 (2003) 1-77, box 2. It needs fewer prompts
than Holm's correction where pairs are alike, as all pairs of a set of methods are.

Groups are a compact letter display: two methods share a letter exactly if no test tells them apart. Piepho, "An
algorithm for a letter-based representation of all-pairwise comparisons", J. Comput. Graph. Stat. 13 (2004) 456-466.
"""

from collections.abc import Iterable
from itertools import combinations
from string import ascii_letters

import numpy as np

DRAWS = 9_999
_CLOSE = 1e-9


def all_pairs(values: np.ndarray, cluster: np.ndarray, draws: int = DRAWS, seed: int = 0) -> np.ndarray:
    """Return adjusted two-sided p of every pair of methods, ``[methods, methods]``, 1 on the diagonal.

    ``values [methods, prompts]``; ``cluster [prompts]``: the number of each prompt's context; its signs flip together.
    The statistic of a pair is its sum of differences over the root of the sum of their squares, which flips leave as it
    is. Deterministic for a seed.
    """
    methods = len(values)
    p = np.ones((methods, methods))
    first, second = np.triu_indices(methods, 1)
    if not len(first):
        return p
    of_context = np.zeros((values.shape[0], int(cluster.max()) + 1))
    np.add.at(of_context.T, cluster, values.T)
    difference = of_context[second] - of_context[first]
    size = np.sqrt((difference**2).sum(axis=1, keepdims=True))
    scaled = np.divide(difference, size, out=np.zeros_like(difference), where=size > _CLOSE)
    observed = np.abs(scaled.sum(axis=1))
    order = np.argsort(-observed, kind="stable")
    scaled, observed = scaled[order], observed[order]
    generator, extreme = np.random.default_rng(seed), np.ones(len(order))
    block = max(1, 4_000_000 // max(scaled.shape))
    for start in range(0, draws, block):
        signs = generator.choice((-1.0, 1.0), size=(min(block, draws - start), scaled.shape[1]))
        flipped = np.abs(signs @ scaled.T)
        largest = np.maximum.accumulate(flipped[:, ::-1], axis=1)[:, ::-1]  # over this pair and those less extreme
        extreme += (largest >= observed - _CLOSE).sum(axis=0)
    p[first[order], second[order]] = np.maximum.accumulate(extreme / (draws + 1))
    return np.minimum(p, p.T)


def letters(told_apart: Iterable[tuple[int, int]], methods: int) -> list[str]:
    """Return letters of each method, which are numbered best first: a method has the letters of all of its groups."""
    groups = [frozenset(range(methods))] * (methods > 0)
    for first, second in told_apart:
        both = [group for group in groups if first in group and second in group]
        split = [group - {method} for group in both for method in (first, second)]
        groups = [group for group in groups if group not in both] + split
        distinct = list(dict.fromkeys(groups))
        groups = [group for group in distinct if not any(group < other for other in distinct)]
    groups.sort(key=sorted)
    return ["".join(_letter(number) for number, group in enumerate(groups) if i in group) for i in range(methods)]


def pairs_told_apart(p: np.ndarray, alpha: float) -> list[tuple[int, int]]:
    """Return the pairs of methods whose p is at most alpha."""
    return [(i, j) for i, j in combinations(range(len(p)), 2) if p[i, j] <= alpha]


def _letter(number: int) -> str:
    """a..z, A..Z, then a2, b2 and so on."""
    turn, place = divmod(number, len(ascii_letters))
    return ascii_letters[place] + (str(turn + 1) if turn else "")
