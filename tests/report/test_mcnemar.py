import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.stats import binomtest, norm
from statsmodels.stats.contingency_tables import mcnemar as statsmodels_mcnemar

from kvbench.report.stats.intervals import tango
from kvbench.report.stats.paired_tests import mcnemar

COUNTS = [(0, 0, 11), (0, 1, 23), (5, 0, 50), (12, 2, 50), (9, 21, 100), (43, 41, 1000), (7, 7, 14), (13, 0, 13)]


@pytest.mark.parametrize(("only_a", "only_b", "n"), COUNTS)
def test_p_is_that_of_statsmodels_and_of_the_binomial_test(only_a: int, only_b: int, n: int) -> None:
    table = [[n - only_a - only_b, only_a], [only_b, 0]]
    p = mcnemar(only_a, only_b)
    assert p == pytest.approx(min(1.0, statsmodels_mcnemar(table, exact=True).pvalue), rel=1e-9)
    assert p == pytest.approx(binomtest(only_a, only_a + only_b).pvalue if only_a + only_b else 1.0, rel=1e-9)


def refused(only_a: int, only_b: int, n: int, difference: float) -> bool:
    """The score test with the likelihood maximised by a general optimiser instead of a formula."""

    def loss(p_a: float) -> float:
        p = np.clip([p_a, p_a + difference, 1 - 2 * p_a - difference], 1e-15, None)
        return -float(np.array([only_a, only_b, n - only_a - only_b]) @ np.log(p))

    bounds = (max(0.0, -difference), (1 - difference) / 2)
    p_a = minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-12}).x
    variance = n * (2 * p_a + difference - difference**2)
    return bool(abs(only_b - only_a - n * difference) > norm.ppf(0.975) * np.sqrt(variance))


@pytest.mark.parametrize(("only_a", "only_b", "n"), COUNTS[1:6])
def test_the_interval_holds_what_the_score_test_accepts(only_a: int, only_b: int, n: int) -> None:
    low, high = tango(only_a, only_b, n)
    for limit, inwards in ((low, 1), (high, -1)):
        assert refused(only_a, only_b, n, limit - inwards * 1e-4)
        assert not refused(only_a, only_b, n, limit + inwards * 1e-4)


def test_the_interval_turns_with_its_sides_and_shrinks_with_n() -> None:
    low, high = tango(12, 5, 80)
    mirrored = tango(5, 12, 80)
    assert mirrored == pytest.approx((-high, -low))
    wide = [tango(0, 0, n) for n in (10, 50, 1000)]
    assert [high for _, high in wide] == pytest.approx([3.8414588 / (n + 3.8414588) for n in (10, 50, 1000)])
    assert tango(7, 0, 7)[0] == pytest.approx(-1.0)
