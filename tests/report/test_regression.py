import numpy as np
import pytest

from kvbench.report.stats.corrections import regressions
from kvbench.report.stats.paired import Paired


def losses(count: int, n: int = 50, gains: int = 0) -> Paired:
    b = np.concatenate([-np.ones(count), np.ones(gains), np.zeros(n - count - gains)])
    return Paired(np.zeros(n), b, np.arange(n), rate=False)


def together(cells: list[Paired]) -> Paired:
    """All pairs, no two about one question."""
    a, b = (np.concatenate([getattr(pairs, side) for pairs in cells]) for side in "ab")
    return Paired(a, b, np.arange(len(a)), rate=False)


def test_half_of_alpha_each() -> None:
    cells = [losses(9), losses(0, gains=9)]  # 2^-9 x 2 cells = 0.0039, and the pool is level
    found = regressions(cells, together(cells), 0.01)
    assert found.worse == (True, False) and found.threshold == 0.005
    assert (found.pooled_worse, found.pooled > 0.4) == (False, True)
    cells = [losses(8), losses(0, gains=8)]  # 0.0078: not at half of alpha
    assert regressions(cells, together(cells), 0.01).worse == (False, False)


def test_a_refused_pool_passes_its_half_on() -> None:
    cells = [losses(8), losses(0)]
    found = regressions(cells, together(cells), 0.01)
    assert found.pooled_worse and found.threshold == 0.01
    assert found.worse == (True, False)


def test_refused_cells_pass_theirs_on() -> None:
    cells = [losses(9), losses(9)]
    cluster = np.concatenate([np.arange(50)] * 2)  # the same questions: nine of them, no more sure than one cell
    pooled = Paired(np.zeros(100), np.concatenate([cells[0].b, cells[1].b]), cluster, rate=False)
    found = regressions(cells, pooled, 0.01)
    assert found.worse == (True, True) and found.pooled == pytest.approx(2.0**-9) and found.pooled_worse


def test_one_cell_has_all_of_alpha() -> None:
    found = regressions([losses(7)], None, 0.01)
    assert found.worse == (True,) and found.pooled is None and found.threshold == 0.01


def noise(generator: np.random.Generator, n: int, flips: float, drop: float = 0.0) -> Paired:
    """0/1 answers of which ``flips`` change each way by chance, and ``drop`` more are lost."""
    kinds = generator.choice(3, n, p=[flips + drop, flips, 1 - 2 * flips - drop])
    return Paired((kinds == 0).astype(float), (kinds == 1).astype(float), np.arange(n))


def test_noise_alone_rarely_fails_and_losses_are_caught() -> None:
    """A small version of benchmarks/statistics/errors.py; docs/statistics.md has its table."""
    generator = np.random.default_rng(0)
    alarms = thin = deep = 0
    for _ in range(120):
        cells = [noise(generator, 80, 0.02) for _ in range(20)]
        found = regressions(cells, pooled(cells))
        alarms += any(found.worse) or found.pooled_worse
        cells = [noise(generator, 80, 0.02, 0.05) for _ in range(20)]
        thin += regressions(cells, pooled(cells)).pooled_worse
        cells = [noise(generator, 200, 0.02, 0.15 if i == 3 else 0.0) for i in range(20)]
        deep += regressions(cells, pooled(cells)).worse[3]
    assert alarms <= 4 and thin >= 118 and deep >= 114


def pooled(cells: list[Paired]) -> Paired:
    a, b = (np.concatenate([getattr(pairs, side) for pairs in cells]) for side in "ab")
    return Paired(a, b, np.arange(len(a)))
