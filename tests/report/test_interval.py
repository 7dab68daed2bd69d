import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from kvbench.report.stats.intervals import mean_interval, student, student_quantile, wilson

VALUES = st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=50)


@given(st.integers(1, 3000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_is_that_of_scipy(case: tuple[int, int]) -> None:
    hits, n = case
    theirs = stats.binomtest(hits, n).proportion_ci(method="wilson")
    assert wilson(hits, n) == pytest.approx((theirs.low, theirs.high), abs=1e-12)


@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_stays_in_bounds_holds_the_mean_and_is_symmetric(case: tuple[int, int]) -> None:
    hits, n = case
    low, high = wilson(hits, n)
    assert 0.0 <= low <= hits / n <= high <= 1.0
    assert low < high
    assert wilson(n - hits, n) == pytest.approx((1 - high, 1 - low), abs=1e-12)


def test_wilson_solves_the_equation_it_is_derived_from() -> None:
    """|p - hits / n| = z sqrt(p (1 - p) / n) at both ends."""
    for end in wilson(13, 50):
        assert abs(end - 13 / 50) == pytest.approx(stats.norm.ppf(0.975) * math.sqrt(end * (1 - end) / 50), rel=1e-12)


@pytest.mark.parametrize("degrees", [*range(1, 40), 49, 50, 99, 199, 499, 1000, 4999])
def test_the_quantile_of_student_is_that_of_scipy(degrees: int) -> None:
    assert student_quantile(degrees) == pytest.approx(stats.t.ppf(0.975, degrees), rel=1e-10)


@given(VALUES)
def test_student_is_mean_and_quantile_times_standard_error(values: list[float]) -> None:
    n = len(values)
    half = stats.t.ppf(0.975, n - 1) * statistics.stdev(values) / math.sqrt(n)
    mean = statistics.fmean(values)
    assert student(values) == pytest.approx((mean - half, mean + half), rel=1e-6, abs=1e-6)


def test_answers_that_are_right_or_wrong_take_wilson() -> None:
    assert mean_interval([1.0, 0.0, 1.0, 1.0], rate=True) == (0.75, *wilson(3, 4))
    assert mean_interval([0.0, 0.0], rate=True) == (0.0, *wilson(0, 2))


def test_shares_take_student_cut_to_what_a_rate_can_be() -> None:
    assert mean_interval([0.5, 0.6, 0.7], rate=True) == (pytest.approx(0.6), *student([0.5, 0.6, 0.7]))
    low, high = student([0.1, 0.9, 1.0])
    assert low < 0.0 and high > 1.0
    assert mean_interval([0.1, 0.9, 1.0], rate=True)[1:] == (0.0, 1.0)


def test_what_is_no_rate_is_not_cut_and_never_takes_wilson() -> None:
    assert mean_interval([0.0, 1.0], rate=False) == (0.5, *student([0.0, 1.0]))
    assert student([0.0, 1.0])[0] < 0


def test_one_value_has_no_interval() -> None:
    assert mean_interval([1.0], rate=True) == (1.0, None, None)


@given(VALUES.map(sorted), st.randoms())
def test_the_order_of_samples_changes_nothing(values: list[float], random) -> None:
    shuffled = list(values)
    random.shuffle(shuffled)
    assert mean_interval(shuffled, rate=False) == mean_interval(values, rate=False)
