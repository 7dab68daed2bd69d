import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.report.stats.corrections import holm, tarone_holm, threshold

SHARES = st.floats(0, 1)


@given(st.lists(SHARES, min_size=1, max_size=17), st.sampled_from([0.01, 0.05, 0.3]))
def test_tests_that_can_refuse_anything_are_corrected_by_holm(p: list[float], alpha: float) -> None:
    refused, _ = tarone_holm(p, [0.0] * len(p), alpha)
    assert refused == tuple(each <= alpha for each in holm(p)) or min(abs(each - alpha) for each in holm(p)) < 1e-12


@given(st.lists(st.tuples(SHARES, SHARES), min_size=1, max_size=17))
def test_tests_that_cannot_refuse_cost_nothing_and_are_never_refused(pairs: list[tuple[float, float]]) -> None:
    p, least = [max(pair) for pair in pairs], [min(pair) for pair in pairs]
    refused, _ = tarone_holm(p, least, 0.05)
    assert all(corrected > 0.05 or one for corrected, one in zip(holm(p), refused, strict=True)), "no less than Holm"
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
