import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.stats import bootstrap, ttest_1samp

from kvbench.report.stats.intervals import (
    expanded_percentile,
    interval,
    mean_interval,
    resampled_means,
    standard_error,
    student,
    student_of_clusters,
    student_quantile,
    tango,
    wilson,
    with_pseudo_clusters,
)
from kvbench.report.stats.paired import Paired

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


@pytest.mark.parametrize("degrees", [*range(1, 40), 49, 50, 99, 199, 499, 1000, 4999])
def test_the_quantile_of_student_is_that_of_scipy(degrees: int) -> None:
    assert student_quantile(degrees) == pytest.approx(stats.t.ppf(0.975, degrees), rel=1e-10)


@given(VALUES)
def test_student_is_mean_and_quantile_times_standard_error(values: list[float]) -> None:
    n = len(values)
    half = stats.t.ppf(0.975, n - 1) * statistics.stdev(values) / math.sqrt(n)
    mean = statistics.fmean(values)
    assert student(values) == pytest.approx((mean - half, mean + half), rel=1e-6, abs=1e-6)


def test_a_weighted_mean_has_the_interval_of_a_ratio_of_sums() -> None:
    values, weights = [2.1, 3.4, 2.8, 5.0], [10.0, 400.0, 35.0, 80.0]
    sums = np.multiply(values, weights)
    assert student(values, weights) == pytest.approx(student_of_clusters(sums, np.array(weights)))
    assert student(values, [7.0] * 4) == pytest.approx(student(values))


def test_answers_take_wilson_shares_student_cut_to_rates_and_what_is_no_rate_student() -> None:
    assert mean_interval([1.0, 0.0, 1.0, 1.0], rate=True) == (0.75, *wilson(3, 4))
    assert mean_interval([0.0, 0.0], rate=True) == (0.0, *wilson(0, 2))
    assert mean_interval([0.5, 0.6, 0.7], rate=True) == (pytest.approx(0.6), *student([0.5, 0.6, 0.7]))
    low, high = student([0.1, 0.9, 1.0])
    assert low < 0.0 and high > 1.0 and mean_interval([0.1, 0.9, 1.0], rate=True)[1:] == (0.0, 1.0)
    assert mean_interval([0.0, 1.0], rate=False) == (0.5, *student([0.0, 1.0]))
    assert mean_interval([1.0], rate=True) == (1.0, None, None)
    same = mean_interval([0.5] * 8, rate=True)
    assert same == (0.5, *wilson(4, 8)), "what has no spread is no certainty"
    assert mean_interval([0.5] * 8, True, np.arange(8) // 2)[1:] == wilson(2, 4)


def test_graded_answers_have_contexts_as_units_and_one_context_has_no_interval() -> None:
    values, context = [0.2, 0.4, 0.9, 0.6, 0.1, 0.5], np.array([0, 0, 1, 1, 2, 2])
    low, high = ttest_1samp([0.3, 0.75, 0.3], 0).confidence_interval(0.95)
    assert low < 0 and high > 1, "rates are cut"
    assert mean_interval(values, rate=False, cluster=context) == pytest.approx((0.45, low, high))
    assert mean_interval(values, rate=True, cluster=context) == pytest.approx((0.45, 0.0, 1.0))
    assert mean_interval(values, rate=True, cluster=np.zeros(6, int)) == (pytest.approx(0.45), None, None)


def test_answers_of_contexts_have_the_interval_of_as_many_alone_but_never_of_more_than_there_are() -> None:
    context = np.repeat(np.arange(10), 2)
    _, low, high = mean_interval([0.0] * 6 + [1.0] * 14, True, context)
    half = stats.t.ppf(0.975, 9) * np.std([0.0] * 3 + [1.0] * 7, ddof=1) / math.sqrt(10)
    alone = 0.7 * 0.3 * (stats.norm.ppf(0.975) / half) ** 2
    assert (low, high) == pytest.approx(wilson(0.7 * alone, alone))
    assert mean_interval([0.0, 1.0] * 8 + [0.0, 0.0, 1.0, 1.0], True, context)[1:] == wilson(10, 20)


@given(VALUES.map(sorted), st.randoms())
def test_the_order_of_samples_changes_nothing(values: list[float], random) -> None:
    shuffled = list(values)
    random.shuffle(shuffled)
    assert mean_interval(shuffled, rate=False) == mean_interval(values, rate=False)


def pairs(a: list[float], b: list[float], cluster: list[int] | None = None, rate: bool = True) -> Paired:
    numbers = np.arange(len(a)) if cluster is None else np.array(cluster)
    return Paired(np.array(a, float), np.array(b, float), numbers, rate)


@pytest.fixture
def f1() -> Paired:
    generator = np.random.default_rng(3)
    a = np.clip(generator.normal(0.5, 0.4, 67), 0, 1)
    return Paired(a, np.clip(a + generator.normal(0.06, 0.2, 67), 0, 1), np.arange(67))


def test_the_percentiles_are_those_of_scipy(f1: Paired) -> None:
    sums, sizes = f1.sums()
    means = resampled_means(sums, sizes, 20_000, 0)
    theirs = bootstrap((sums,), np.mean, n_resamples=20_000, method="percentile", rng=np.random.default_rng(1))
    assert np.quantile(means, [0.025, 0.975]) == pytest.approx(theirs.confidence_interval, abs=0.002)
    assert means.std() == pytest.approx(theirs.standard_error, rel=0.02)


def test_the_expanded_percentiles_of_normal_data_are_those_of_student() -> None:
    sums = np.random.default_rng(8).normal(0, 1, 23)
    low, high = expanded_percentile(sums, np.ones(23), 40_000, 0)
    expected = ttest_1samp(sums, 0).confidence_interval(0.95)
    assert (low, high) == pytest.approx(tuple(expected), abs=0.03)
    assert student_of_clusters(sums, np.ones(23)) == pytest.approx(tuple(expected))


@pytest.mark.parametrize(("n", "tail"), [(10, 0.0086), (20, 0.0159), (80, 0.0226)])
def test_percentiles_are_expanded_as_hesterberg_says(n: int, tail: float) -> None:
    """The part of the resampled means beyond each limit, Phi(-sqrt(n / (n - 1)) t), 0.025 for many samples."""
    sums = np.random.default_rng(n).normal(0, 1, n)
    limits = expanded_percentile(sums, np.ones(n), 100_000, 0)
    means = resampled_means(sums, np.ones(n), 100_000, 0)
    assert [(means < limits[0]).mean(), (means > limits[1]).mean()] == pytest.approx([tail, tail], abs=1e-4)


def test_several_data_sets_share_their_resamples(f1: Paired) -> None:
    sums, sizes = f1.sums()
    together = expanded_percentile(np.stack([sums, -2 * sums]), sizes, 999, 7)
    assert (together[0][0], together[1][0]) == pytest.approx(expanded_percentile(sums, sizes, 999, 7))
    assert (-2 * together[1][0], -2 * together[0][0]) == pytest.approx((together[0][1], together[1][1]), abs=0.01)


def test_the_method_is_chosen_by_the_values_and_the_same_seed_gives_the_same_interval(f1: Paired) -> None:
    assert interval(f1) == interval(f1)
    assert interval(f1).method == "bootstrap"
    assert interval(f1, seed=1) != interval(f1)
    limits = interval(pairs([1, 1, 0, 1, 0] * 4, [1, 0, 0, 0, 1] * 4))
    assert (limits.low, limits.high, limits.method) == (*tango(8, 4, 20), "tango"), "answers have the score interval"
    limits = interval(pairs([1.0] * 12, [0.0] * 11 + [0.5]))
    assert limits.low == -1.0 and limits.high < 0, "limits of rates stay among rates"


def test_questions_about_one_context_count_as_one() -> None:
    """Five copies of each question say no more than one."""
    generator = np.random.default_rng(1)
    a, b = generator.random((2, 40)).round(1)
    alone = interval(pairs(a.tolist(), b.tolist()))
    copied = interval(pairs(np.repeat(a, 5).tolist(), np.repeat(b, 5).tolist(), np.repeat(np.arange(40), 5).tolist()))
    assert (copied.low, copied.high) == pytest.approx((alone.low, alone.high))
    naive = interval(pairs(np.repeat(a, 5).tolist(), np.repeat(b, 5).tolist()))
    assert copied.high - copied.low > 2 * (naive.high - naive.low)


def test_the_standard_error_of_unequal_clusters_is_that_of_the_resampled_means() -> None:
    generator = np.random.default_rng(2)
    sizes = generator.integers(1, 9, 60).astype(float)
    sums = sizes * generator.normal(0.2, 0.5, 60)
    means = resampled_means(sums, sizes, 20_000, 0)
    assert standard_error(sums, sizes) == pytest.approx(means.std(), rel=0.05)
    assert standard_error(sums[:30], np.ones(30)) == pytest.approx(sums[:30].std(ddof=1) / np.sqrt(30))


def test_equal_differences_are_no_certainty() -> None:
    """Nothing seen to change in 50 answers: something may still change in one of 20."""
    same = [0.25, 0.5] * 25
    limits = interval(pairs(same, same))
    assert limits.low < -0.03 and limits.high > 0.03
    assert interval(pairs(same, [value + 0.25 for value in same])).low < 0.23
    assert interval(pairs([1.0] * 50, [1.0] * 50)).high == pytest.approx(tango(0, 0, 50)[1])
    flat = interval(pairs([2.5] * 20, [2.5] * 20, rate=False))
    assert (flat.low, flat.high, flat.method) == (None, None, "")


def test_few_clusters_have_an_interval_of_student() -> None:
    limits = interval(pairs([0.1, 0.4, 0.3, 0.9], [0.3, 0.4, 0.2, 0.95]))
    sums, sizes = with_pseudo_clusters(np.array([0.2, 0.0, -0.1, 0.05]), np.ones(4))
    assert limits.method == "student"
    assert (limits.low, limits.high) == pytest.approx(student_of_clusters(sums, sizes))
    nats = interval(pairs([2.0, 2.5, 3.0], [2.1, 2.5, 3.2], rate=False))
    assert (nats.low, nats.high) == pytest.approx(tuple(ttest_1samp([0.1, 0.0, 0.2], 0).confidence_interval(0.95)))
    alone = interval(pairs([0.5], [0.25]))
    assert (alone.low, alone.high) == (None, None)


def test_pseudo_clusters_of_zero_one_answers_are_those_of_bonett_and_price() -> None:
    sums, sizes = with_pseudo_clusters(np.array([1.0] * 6 + [-1.0] * 2 + [0.0] * 22), np.ones(30))
    lost, gained = 3 / 32, 7 / 32
    assert sums.sum() / sizes.sum() == pytest.approx(4 / 32)
    assert standard_error(sums, sizes) * np.sqrt(31 / 32) == pytest.approx(
        np.sqrt((lost + gained - (gained - lost) ** 2) / 32)
    )
