import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from statsmodels.stats.multitest import multipletests

from kvbench.report.stats.paired import Paired
from kvbench.report.stats.paired_tests import holm, regressions, tarone_holm, threshold


def is_that_of_statsmodels(p: list[float]) -> bool:
    return holm(p) == pytest.approx(multipletests(p, method="holm")[1].tolist())


@pytest.mark.parametrize("p", [[0.2], [0.5, 0.01, 0.01, 0.0, 1.0, 0.03], np.linspace(0, 0.1, 31).tolist()], ids=len)
def test_holm_of_some_values_is_that_of_statsmodels(p: list[float]) -> None:
    assert is_that_of_statsmodels(p)


@pytest.mark.slow
@settings(max_examples=8)  # statsmodels takes a tenth of a second for each
@given(st.lists(st.floats(0, 1), min_size=1, max_size=31))
def test_holm_is_that_of_statsmodels(p: list[float]) -> None:
    assert is_that_of_statsmodels(p)


def test_holm_of_a_family_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []


def test_no_true_null_of_a_family_is_refused_more_often_than_asked() -> None:
    generator = np.random.default_rng(0)
    families = generator.random((4000, 13))
    assert np.mean([min(holm(family)) <= 0.05 for family in families]) == pytest.approx(0.05, abs=0.011)


SHARES = st.floats(0, 1)


@given(st.lists(SHARES, min_size=1, max_size=17), st.sampled_from([0.01, 0.05, 0.3]))
def test_tests_that_can_refuse_anything_are_corrected_by_holm(p: list[float], alpha: float) -> None:
    refused, _ = tarone_holm(p, [0.0] * len(p), alpha)
    assert refused == tuple(each <= alpha for each in holm(p)) or min(abs(each - alpha) for each in holm(p)) < 1e-12


@given(st.lists(st.tuples(SHARES, SHARES), min_size=1, max_size=17))
def test_tests_that_cannot_refuse_cost_nothing_and_are_never_refused(pairs: list[tuple[float, float]]) -> None:
    p, least = [max(pair) for pair in pairs], [min(pair) for pair in pairs]
    refused, _ = tarone_holm(p, least, 0.05)
    assert all(corrected > 0.05 or refusal for corrected, refusal in zip(holm(p), refused, strict=True)), (
        "no less than Holm"
    )
    more, _ = tarone_holm([*p, 1.0, 1.0], [*least, 0.5, 1.0], 0.05)
    assert more == (*refused, False, False)


def test_the_divisor_by_hand() -> None:
    """2^-4 = 0.0625 refuses nothing at 0.05; of 2^-5, 2^-6, 2^-6 two could at 0.025, which is no more than two."""
    assert threshold([2**-4] * 9, 0.05) == 0.05
    assert threshold([2**-5, 2**-6, 2**-6, 2**-4], 0.05) == 0.025
    assert threshold([0.0] * 8, 0.05) == pytest.approx(0.05 / 8)
    assert tarone_holm([], [], 0.05) == ((), 0.05)


def test_true_nulls_of_discrete_tests_are_rarely_refused() -> None:
    """Signs of 1 to 12 differences in each of 20 cells: p is the binomial tail."""
    generator = np.random.default_rng(0)
    wrong = 0
    for _ in range(2000):
        m = generator.integers(1, 13, 20)
        signs = [generator.integers(0, 2, count).sum() for count in m]
        p = [float(TAILS[count][lost]) for count, lost in zip(m, signs, strict=True)]
        wrong += any(tarone_holm(p, 2.0**-m, 0.05)[0])
    assert wrong / 2000 <= 0.05


def tails(m: int) -> np.ndarray:
    """P(at least k of m), k = 0..m."""
    row = np.ones(1)
    for _ in range(m):
        row = (np.append(row, 0) + np.append(0, row)) / 2
    return row[::-1].cumsum()[::-1]


TAILS = {m: tails(m) for m in range(1, 13)}


def losses(count: int, n: int = 50, gains: int = 0) -> Paired:
    b = np.concatenate([-np.ones(count), np.ones(gains), np.zeros(n - count - gains)])
    return Paired(np.zeros(n), b, np.arange(n), rate=False)


def together(cells: list[Paired]) -> Paired:
    """All pairs, no two about one question."""
    a, b = (np.concatenate([getattr(pairs, side) for pairs in cells]) for side in "ab")
    return Paired(a, b, np.arange(len(a)), rate=False)


def test_four_fifths_of_alpha_for_the_cells() -> None:
    cells = [losses(8), losses(0, gains=8)]  # 2^-8 x 2 cells = 0.0078, and the pool is level
    verdict = regressions(cells, together(cells), 0.01)
    assert verdict.worse == (True, False) and verdict.threshold == 0.008
    assert (verdict.pooled_worse, verdict.pooled > 0.4) == (False, True)
    cells = [losses(7), losses(0, gains=7)]  # 0.0156: more than all of it
    assert regressions(cells, together(cells), 0.01).worse == (False, False)


def test_a_refused_pool_passes_its_part_on() -> None:
    cells = [losses(9), losses(0)]
    verdict = regressions(cells, together(cells), 0.01)
    assert verdict.pooled_worse and verdict.threshold == 0.01
    assert verdict.worse == (True, False)


def test_refused_cells_pass_theirs_on() -> None:
    cells = [losses(9), losses(9)]
    cluster = np.concatenate([np.arange(50)] * 2)  # the same questions: nine of them, no more sure than one cell
    pooled = Paired(np.zeros(100), np.concatenate([cells[0].b, cells[1].b]), cluster, rate=False)
    verdict = regressions(cells, pooled, 0.01)
    assert verdict.worse == (True, True) and verdict.pooled == pytest.approx(2.0**-9) and verdict.pooled_worse


def test_one_cell_has_all_of_alpha() -> None:
    verdict = regressions([losses(7)], None, 0.01)
    assert verdict.worse == (True,) and verdict.pooled is None and verdict.threshold == 0.01


def noise(generator: np.random.Generator, n: int, flips: float, drop: float = 0.0) -> Paired:
    """0/1 answers of which ``flips`` change each way by chance, and ``drop`` more are lost."""
    kinds = generator.choice(3, n, p=[flips + drop, flips, 1 - 2 * flips - drop])
    return Paired((kinds == 0).astype(float), (kinds == 1).astype(float), np.arange(n))


@pytest.mark.parametrize("rounds", [60, pytest.param(120, marks=pytest.mark.slow)])
def test_noise_alone_rarely_fails_and_losses_are_caught(rounds: int) -> None:
    """A small version of benchmarks/statistics/errors.py; benchmarks/results/statistics.md has its table."""
    generator = np.random.default_rng(0)
    alarms = thin = deep = 0
    for _ in range(rounds):
        cells = [noise(generator, 80, 0.02) for _ in range(20)]
        verdict = regressions(cells, pooled(cells))
        alarms += any(verdict.worse) or verdict.pooled_worse
        cells = [noise(generator, 80, 0.02, 0.05) for _ in range(20)]
        thin += regressions(cells, pooled(cells)).pooled_worse
        cells = [noise(generator, 200, 0.02, 0.15 if i == 3 else 0.0) for i in range(20)]
        deep += regressions(cells, pooled(cells)).worse[3]
    assert alarms <= rounds / 30 and thin >= rounds * 59 / 60 and deep >= rounds * 57 / 60


def pooled(cells: list[Paired]) -> Paired:
    a, b = (np.concatenate([getattr(pairs, side) for pairs in cells]) for side in "ab")
    return Paired(a, b, np.arange(len(a)))
