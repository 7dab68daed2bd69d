"""One-sided tests against a margin agree with scipy's and with the intervals that are shown beside them."""

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from kvbench.report.stats.equivalence import p_not_above, p_not_within
from kvbench.report.stats.intervals import tango
from kvbench.report.stats.paired import Paired

NOISE = np.random.default_rng(4).normal(0.3, 1, 25)


def losses(difference: np.ndarray, cluster: np.ndarray | None = None) -> Paired:
    """Pairs of an unbounded quantity with these differences."""
    numbers = np.arange(len(difference)) if cluster is None else cluster
    return Paired(np.full(len(difference), 7.0), 7.0 + difference, numbers, rate=False)


@pytest.mark.parametrize("limit", [-0.5, 0.0, 0.4, 2.0])
def test_what_is_no_rate_has_the_test_of_student(limit: float) -> None:
    expected = ttest_1samp(NOISE, limit, alternative="greater").pvalue
    assert p_not_above(losses(NOISE), limit) == pytest.approx(expected)


def test_copies_within_a_context_say_no_more_than_one() -> None:
    copied = losses(np.repeat(NOISE, 4), np.repeat(np.arange(25), 4))
    assert p_not_above(copied, 0.1) == pytest.approx(p_not_above(losses(NOISE), 0.1))


def test_within_a_margin_is_above_its_low_end_and_below_its_high_end() -> None:
    below = ttest_1samp(NOISE, 1.5, alternative="less").pvalue
    above = ttest_1samp(NOISE, -0.2, alternative="greater").pvalue
    assert p_not_within(losses(NOISE), -0.2, 1.5) == pytest.approx(max(below, above))
    assert p_not_within(losses(NOISE), -5, 0.6) == pytest.approx(ttest_1samp(NOISE, 0.6, alternative="less").pvalue)


@pytest.mark.parametrize(("lost", "gained", "n"), [(3, 9, 40), (0, 0, 30), (5, 5, 60), (12, 2, 25)])
def test_answers_are_refused_at_the_ends_of_their_interval(lost: int, gained: int, n: int) -> None:
    """The 95 % interval holds the differences that neither test refuses at 2.5 %."""
    a, b = np.zeros(n), np.zeros(n)
    a[:lost], b[lost : lost + gained] = 1, 1
    low, high = tango(lost, gained, n)
    paired = Paired(a, b, np.arange(n))
    assert p_not_above(paired, low) == pytest.approx(0.025, abs=1e-6)
    assert p_not_within(paired, -1, high) == pytest.approx(0.025, abs=1e-6)


@pytest.mark.parametrize("paired", [losses(NOISE, np.zeros(25, int)), losses(np.full(9, 0.5))], ids=["one", "equal"])
def test_one_context_and_equal_differences_show_nothing(paired: Paired) -> None:
    assert p_not_above(paired, -100) == p_not_within(paired, -100, 100) == 1.0
