import numpy as np
import pytest
from scipy.stats import norm

from kvbench.report.stats.paired import Paired
from kvbench.report.stats.paired_tests import can_refuse, detectable, sign_flip


def binary(only_a: int, only_b: int, n: int) -> Paired:
    a = np.array([1.0] * only_a + [0.0] * (n - only_a))
    b = np.array([0.0] * only_a + [1.0] * only_b + [0.0] * (n - only_a - only_b))
    return Paired(a, b, np.arange(n))


def test_the_detectable_difference_is_found_four_times_in_five() -> None:
    """Simulated with the disagreement that the formula was given, and the test that it speaks of."""
    n, disagree, alpha = 200, 0.2, 0.05
    smallest = detectable(binary(20, 20, n), alpha)
    assert smallest == pytest.approx((norm.ppf(0.975) + norm.ppf(0.8)) * np.sqrt(disagree / n), rel=0.05)
    generator = np.random.default_rng(0)
    p = [(disagree - smallest) / 2, (disagree + smallest) / 2, 1 - disagree]
    found = []
    for worse, better, _ in generator.multinomial(n, p, size=1500):
        sums = np.concatenate([-np.ones(worse), np.ones(better)])
        found.append(sign_flip(sums).p <= alpha)
    assert 0.74 < np.mean(found) < 0.86


def test_more_samples_see_less_and_stricter_tests_more() -> None:
    assert detectable(binary(40, 40, 400), 0.05) == pytest.approx(
        detectable(binary(20, 20, 200), 0.05) / 2**0.5, rel=0.05
    )
    assert detectable(binary(20, 20, 200), 0.05 / 20) > 1.3 * detectable(binary(20, 20, 200), 0.05)


def test_where_nothing_changed_the_test_itself_sets_the_limit() -> None:
    assert detectable(binary(0, 0, 10_000), 0.05) == pytest.approx(6 / 10_000, rel=0.2)
    assert detectable(binary(0, 0, 5), 0.05) == 1.0
    assert detectable(binary(0, 0, 1), 0.05) is None
    nats = Paired(np.full(9, 2.0), np.full(9, 2.0), np.arange(9), rate=False)
    assert detectable(nats, 0.05) is None


@pytest.mark.parametrize(("clusters", "possible"), [(1, False), (5, False), (6, True), (40, True)])
def test_six_pairs_can_refuse_and_five_cannot(clusters: int, possible: bool) -> None:
    assert can_refuse(clusters, 0.05) is possible
    assert (sign_flip(np.ones(clusters)).p <= 0.05) is possible
