import numpy as np
import pytest
from scipy.stats import binomtest, permutation_test

from kvbench.report.stats import paired_tests
from kvbench.report.stats.paired_tests import sign_flip


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
    found = sign_flip(sums, alternative)
    assert found.method == "exact"
    assert found.p == pytest.approx(scipy_exact(sums, alternative), rel=1e-9)


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


def test_magnitudes_without_a_common_step_are_not_rounded_to_one() -> None:
    sums = np.concatenate([np.full(20, 1 / 3), np.full(20, -np.pi / 10)])
    assert sign_flip(sums).method == "monte carlo"


def test_a_true_null_is_refused_as_often_as_asked() -> None:
    generator = np.random.default_rng(6)
    p = np.array([sign_flip(generator.normal(0, 1, 9)).p for _ in range(2000)])
    for level in (0.05, 0.2, 0.5):
        assert np.mean(p <= level) == pytest.approx(level, abs=3.5 * np.sqrt(level * (1 - level) / 2000))
