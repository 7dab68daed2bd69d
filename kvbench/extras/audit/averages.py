"""Averages of printed differences, and the test over tasks.

Errors of means over the same prompts add, whatever they have in common: the worst dependence. Those over different
prompts are independent and combine by the root of their squares. Means of right and wrong answers, each over as many
prompts of its own, are one heap, and the test is exact.

The test over tasks needs neither n nor variances: Fisher's sign-flip test (`kvbench.report.stats.paired_tests`) with
one observation for each set of prompts, in which all budgets, hosts and models are summed, because what shares prompts
is not independent. It asks whether the effect is zero everywhere, and assumes that noise is symmetric.
"""

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from kvbench.extras.audit.pair_tests import ALPHA, Z_POWER, Z_TEST, binomial_p, normal_p, p_value
from kvbench.extras.audit.pairs import Level, Pair
from kvbench.report.stats.intervals import student
from kvbench.report.stats.paired_tests import sign_flip
from kvbench.support.grouped import grouped


@dataclass(frozen=True)
class Average:
    """The unweighted mean of several differences."""

    pairs: tuple[Pair, ...]

    def __post_init__(self) -> None:
        assert self.pairs

    @property
    def a(self) -> float:
        """The mean of the means of a."""
        return math.fsum(pair.a for pair in self.pairs) / len(self.pairs)

    @property
    def b(self) -> float:
        """The mean of the means of b."""
        return math.fsum(pair.b for pair in self.pairs) / len(self.pairs)

    @property
    def difference(self) -> float:
        """b - a."""
        return round(math.fsum(pair.difference for pair in self.pairs) / len(self.pairs), 12)

    @property
    def sets(self) -> int:
        """Sets of prompts."""
        return len({pair.prompts for pair in self.pairs})

    @property
    def judged(self) -> bool:
        """Whether something bounds every difference."""
        return all(pair.judged for pair in self.pairs)

    def standard_error(self, level: Level, less_gain: bool = False) -> float:
        """sqrt(sum over sets of (sum over its pairs of sqrt(D / n))^2) / pairs; with D - d^2 if `less_gain`."""
        errors = [
            (
                pair.prompts,
                math.sqrt(
                    max(pair.mean_square(level) - less_gain * pair.difference**2, 0.0) / (pair.units * pair.tasks)
                ),
            )
            for pair in self.pairs
        ]
        sets = grouped(errors, lambda error: error[0]).values()
        return math.hypot(*(math.fsum(error for _, error in members) for members in sets)) / len(self.pairs)

    @property
    def is_heap(self) -> bool:
        """Whether all prompts are right or wrong, each was read once by each side, and each weighs the same."""
        return (
            all(pair.right is not None for pair in self.pairs)
            and self.sets == len(self.pairs)
            and len({pair.n for pair in self.pairs}) == 1
        )

    def p_value(self, level: Level) -> float:
        """Return the two-sided p at a level; at `any` less the rounding of printed numbers, as for one pair."""
        if len(self.pairs) == 1:
            return p_value(self.pairs[0], level)
        if self.is_heap:
            return binomial_p(sum(pair.net for pair in self.pairs), sum(pair.discordant(level) for pair in self.pairs))
        rounding = fmean(0.0 if pair.right is not None else 2 * pair.half for pair in self.pairs)
        distance = max(0.0, abs(self.difference) - (rounding if level == "any" else 0.0))
        return normal_p(distance, self.standard_error(level), sum(pair.units * pair.tasks for pair in self.pairs))

    def times_needed(self, level: Level) -> float | None:
        """Return how many times the present prompts show the printed difference with a power of 80 %; None for none."""
        if self.difference == 0.0:
            return None
        distance = Z_TEST * self.standard_error(level) + Z_POWER * self.standard_error(level, less_gain=True)
        return (distance / self.difference) ** 2


@dataclass(frozen=True)
class TasksTest:
    """The test over tasks. p, and p of the sign test; low, high: Student's interval of the mean over tasks.

    up, down: tasks that gain and lose; a tie is neither.
    """

    p: float
    sign_p: float
    up: int
    down: int
    low: float | None
    high: float | None


def tasks_test(differences: Iterable[tuple[Hashable, float]], unit: float = 1e-6) -> TasksTest:
    """Test that no task has an effect, from differences by their set of prompts. unit: of the printed digits.

    One observation is the sum of the differences over a set.
    """
    of_sets = grouped(differences, lambda difference: difference[0]).values()
    sums = np.array([math.fsum(value for _, value in members) for members in of_sets])
    steps = np.rint(sums / unit)
    up, down = int((steps > 0).sum()), int((steps < 0).sum())
    sign_p = binomial_p(up - down, up + down)
    means = [fmean(value for _, value in members) for members in of_sets]
    low, high = student(means) if len(means) > 1 else (None, None)
    return TasksTest(sign_flip(steps).p, sign_p, up, down, low, high)


def tasks_test_of(pairs: Sequence[Pair]) -> TasksTest:
    """Return the test over tasks of pairs, one observation for each name of prompts."""
    unit = min((2 * pair.half for pair in pairs if pair.half), default=1e-6)
    return tasks_test([(pair.prompts, pair.difference) for pair in pairs], unit)


def is_shown(p: float) -> bool:
    """Return whether a p is at most ``ALPHA``."""
    return p <= ALPHA
