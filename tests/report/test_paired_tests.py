import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.stats import binomtest, norm, permutation_test
from statsmodels.stats.contingency_tables import mcnemar as statsmodels_mcnemar

from kvbench.report.stats import paired_tests
from kvbench.report.stats.intervals import tango
from kvbench.report.stats.paired import Paired
from kvbench.report.stats.paired_tests import detectable, mcnemar, sign_flip


def scipy_exact(sums: np.ndarray, alternative: str) -> float:
    return permutation_test(
        (sums,),
        lambda x, axis: x.mean(axis),
        permutation_type="samples",
        n_resamples=2 ** len(sums),
        alternative=alternative,
        vectorized=True,
    ).pvalue


@pytest.mark.parametrize("alternative", ["two-sided", "less"])
@pytest.mark.parametrize("n", [2, 7, 11])
def test_enumeration_is_that_of_scipy(n: int, alternative: str) -> None:
    sums = np.random.default_rng(n).normal(-0.3, 1, n)
    result = sign_flip(sums, alternative)
    assert result.method == "exact"
    assert result.p == pytest.approx(scipy_exact(sums, alternative), rel=1e-9)


@pytest.mark.parametrize(("worse", "better"), [(0, 0), (0, 1), (3, 3), (12, 29), (40, 21), (700, 650)])
def test_zero_one_answers_give_the_binomial_test(worse: int, better: int) -> None:
    sums = np.concatenate([np.zeros(31), -np.ones(worse), np.ones(better)])
    expected = binomtest(better, worse + better).pvalue if worse + better else 1.0
    assert sign_flip(sums).p == pytest.approx(expected, rel=1e-9)
    one_sided = binomtest(better, worse + better, alternative="less").pvalue if worse + better else 1.0
    assert sign_flip(sums, "less").p == pytest.approx(one_sided, rel=1e-9)


def test_the_lattice_agrees_with_enumeration(monkeypatch: pytest.MonkeyPatch) -> None:
    sums = np.array([1, -2, 3, 3, -1, 2, 4, -4, 1, 1, 2, 0, 3]) / 12
    lattice = sign_flip(sums)
    monkeypatch.setattr(paired_tests, "LATTICE", 0)
    enumerated = sign_flip(sums)
    assert lattice.method == enumerated.method == "exact"
    assert lattice.p == pytest.approx(enumerated.p, rel=1e-12)
    monkeypatch.undo()
    assert sign_flip(-sums, "less").p == pytest.approx(scipy_exact(-sums[sums != 0], "less"), rel=1e-9)


def test_monte_carlo_comes_near_enumeration(monkeypatch: pytest.MonkeyPatch) -> None:
    sums = np.random.default_rng(4).normal(0.45, 1, 17)
    exact = sign_flip(sums).p
    monkeypatch.setattr(paired_tests, "ENUMERATED", 0)
    drawn = sign_flip(sums)
    assert drawn.method == "monte carlo"
    assert drawn == sign_flip(sums), "the same seed gives the same p"
    assert drawn != sign_flip(sums, seed=1)
    assert drawn.p == pytest.approx(exact, abs=4 * np.sqrt(exact * (1 - exact) / paired_tests.BATCH))


def test_monte_carlo_draws_more_where_the_threshold_is_finer() -> None:
    sums = np.random.default_rng(5).normal(3, 0.5, 40)  # nobody will ever draw a pattern as extreme
    assert sign_flip(sums).p == pytest.approx(1 / 20_001)
    assert sign_flip(sums, finest=1e-4).p == pytest.approx(1 / 200_001)
    without_step = np.concatenate([np.full(20, 1 / 3), np.full(20, -np.pi / 10)])
    assert sign_flip(without_step).method == "monte carlo", "magnitudes are not rounded to a common step"


COUNTS = [(0, 0, 11), (0, 1, 23), (5, 0, 50), (12, 2, 50), (9, 21, 100), (43, 41, 1000), (7, 7, 14), (13, 0, 13)]


@pytest.mark.parametrize(("only_a", "only_b", "n"), COUNTS)
def test_mcnemar_is_that_of_statsmodels(only_a: int, only_b: int, n: int) -> None:
    table = [[n - only_a - only_b, only_a], [only_b, 0]]
    expected = min(1.0, statsmodels_mcnemar(table, exact=True).pvalue)
    assert mcnemar(only_a, only_b) == pytest.approx(expected, rel=1e-9)


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
    assert tango(5, 12, 80) == pytest.approx((-high, -low))
    wide = [tango(0, 0, n) for n in (10, 50, 1000)]
    assert [high for _, high in wide] == pytest.approx([3.8414588 / (n + 3.8414588) for n in (10, 50, 1000)])
    assert tango(7, 0, 7)[0] == pytest.approx(-1.0)


def binary(only_a: int, only_b: int, n: int) -> Paired:
    a = np.array([1.0] * only_a + [0.0] * (n - only_a))
    b = np.array([0.0] * only_a + [1.0] * only_b + [0.0] * (n - only_a - only_b))
    return Paired(a, b, np.arange(n))


def test_the_detectable_difference_is_that_of_the_formula_and_of_the_test_where_nothing_changed() -> None:
    """`benchmarks.statistics.errors.power`, which tests/report/test_errors.py runs, finds it four times in five."""
    smallest = detectable(binary(20, 20, 200), 0.05)
    assert smallest == pytest.approx((norm.ppf(0.975) + norm.ppf(0.8)) * np.sqrt(0.2 / 200), rel=0.05)
    assert detectable(binary(40, 40, 400), 0.05) == pytest.approx(smallest / 2**0.5, rel=0.05)
    assert detectable(binary(20, 20, 200), 0.05 / 20) > 1.3 * smallest
    assert detectable(binary(0, 0, 10_000), 0.05) == pytest.approx(6 / 10_000, rel=0.2)
    assert detectable(binary(0, 0, 6), 0.05) == 1.0
    assert detectable(binary(5, 0, 5), 0.05) is None and sign_flip(np.ones(5)).p > 0.05, "five prompts show nothing"
    nats = Paired(np.full(9, 2.0), np.full(9, 2.0), np.arange(9), rate=False)
    assert detectable(nats, 0.05) is None
