import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from statsmodels.stats.multitest import multipletests

from kvbench.report.stats.paired import Paired
from kvbench.report.stats.paired_tests import holm, regressions, tarone_holm, threshold


@pytest.mark.parametrize("p", [[0.2], [0.5, 0.01, 0.01, 0.0, 1.0, 0.03], np.linspace(0, 0.1, 31).tolist()], ids=len)
def test_holm_is_that_of_statsmodels(p: list[float]) -> None:
    assert holm(p) == pytest.approx(multipletests(p, method="holm")[1].tolist())
    assert holm([]) == []


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
    assert threshold([2**-5, 2**-6, 2**-6, 2**-4], 0.05) == 0.025
    assert threshold([0.0] * 8, 0.05) == pytest.approx(0.05 / 8)
    assert threshold([2**-5, 2**-6], 2**-5) == 2**-6, "2^-5 refuses something at 2^-5"
    assert tarone_holm([], [], 0.05) == ((), 0.05)


def losses(count: int, n: int = 50, gains: int = 0) -> Paired:
    b = np.concatenate([-np.ones(count), np.ones(gains), np.zeros(n - count - gains)])
    return Paired(np.zeros(n), b, np.arange(n), rate=False)


def together(cells: list[Paired], rate: bool = False) -> Paired:
    """All pairs, no two about one question."""
    a, b = (np.concatenate([getattr(pairs, side) for pairs in cells]) for side in "ab")
    return Paired(a, b, np.arange(len(a)), rate=rate)


def test_four_fifths_of_alpha_for_the_cells() -> None:
    cells = [losses(8), losses(0, gains=8)]  # 2^-8 x 2 cells = 0.0078, and the pool is level
    verdict = regressions(cells, together(cells), 0.01)
    assert verdict.worse == (True, False) and verdict.threshold == 0.008
    assert (verdict.pooled_worse, verdict.pooled > 0.4) == (False, True)
    cells = [losses(7), losses(0, gains=7)]  # 0.0156: more than all of it
    assert regressions(cells, together(cells), 0.01).worse == (False, False)


def test_a_refused_pool_and_refused_cells_pass_their_parts_on() -> None:
    cells = [losses(9), losses(0)]
    verdict = regressions(cells, together(cells), 0.01)
    assert verdict.pooled_worse and verdict.threshold == 0.01
    assert verdict.worse == (True, False)
    cells = [losses(9), losses(9)]
    cluster = np.concatenate([np.arange(50)] * 2)  # the same questions: nine of them, no more sure than one cell
    pooled = Paired(np.zeros(100), np.concatenate([cells[0].b, cells[1].b]), cluster, rate=False)
    verdict = regressions(cells, pooled, 0.01)
    assert verdict.worse == (True, True) and verdict.pooled == pytest.approx(2.0**-9) and verdict.pooled_worse

    cells = [losses(8), losses(8)]  # 2^-8 = 0.0039: too much for the pool's 0.002, but the cells pass theirs on
    pooled = Paired(np.zeros(100), np.concatenate([cells[0].b, cells[1].b]), cluster, rate=False)
    verdict = regressions(cells, pooled, 0.01)
    assert verdict.worse == (True, True) and verdict.pooled_worse and verdict.pooled_threshold == 0.01

    verdict = regressions([losses(7)], None, 0.01)  # one cell has all of alpha
    assert verdict.worse == (True,) and verdict.pooled is None and verdict.threshold == 0.01


def noise(generator: np.random.Generator, n: int, flips: float, drop: float = 0.0) -> Paired:
    """0/1 answers of which ``flips`` change each way by chance, and ``drop`` more are lost."""
    kinds = generator.choice(3, n, p=[flips + drop, flips, 1 - 2 * flips - drop])
    return Paired((kinds == 0).astype(float), (kinds == 1).astype(float), np.arange(n))


def test_noise_alone_rarely_fails_and_losses_are_caught() -> None:
    """A small version of benchmarks/statistics/errors.py; benchmarks/results/statistics.md has its table."""
    generator, rounds = np.random.default_rng(0), 60
    alarms = thin = deep = 0
    for _ in range(rounds):
        cells = [noise(generator, 80, 0.02) for _ in range(20)]
        verdict = regressions(cells, together(cells, rate=True))
        alarms += any(verdict.worse) or verdict.pooled_worse
        cells = [noise(generator, 80, 0.02, 0.05) for _ in range(20)]
        thin += regressions(cells, together(cells, rate=True)).pooled_worse
        cells = [noise(generator, 200, 0.02, 0.15 if i == 3 else 0.0) for i in range(20)]
        deep += regressions(cells, together(cells, rate=True)).worse[3]
    assert alarms <= rounds / 30 and thin >= rounds * 59 / 60 and deep >= rounds * 57 / 60
