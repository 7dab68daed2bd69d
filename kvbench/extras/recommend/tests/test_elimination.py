"""Evidence about a mean loss that may be looked at after every prompt, and the elimination of methods by it."""

import numpy as np
import pytest

from kvbench.extras.recommend.anytime_tests import confidence, more_prompts, p_above, p_below
from kvbench.extras.recommend.elimination import Evidence, decisions, next_levels


def drawn(generator: np.random.Generator, prompts: int, lost: float, won: float = 0.0) -> np.ndarray:
    return generator.choice([1.0, -1.0, 0.0], size=prompts, p=[lost, won, 1 - lost - won])


@pytest.mark.parametrize(("lost", "won", "tolerated"), [(0.05, 0.0, 0.05), (0.3, 0.2, 0.1), (0.5, 0.5, 0.0)])
def test_a_mean_at_the_limit_is_refused_at_most_so_often_at_any_look(lost: float, won: float, tolerated: float) -> None:
    generator, runs, alpha = np.random.default_rng(1), 200, 0.1
    above = below = 0
    for _ in range(runs):
        losses = drawn(generator, 200, lost, won)
        looks = [losses[:n] for n in (20, 50, 100, 150, 200)]
        above += min(p_above(part, tolerated) for part in looks) <= alpha
        below += min(p_below(part, tolerated) for part in looks) <= alpha
    most = alpha * runs + 3 * (alpha * (1 - alpha) * runs) ** 0.5
    assert max(above, below) <= most
    assert above + below > 0  # it does refuse


def test_the_wealth_of_one_share_by_hand() -> None:
    """Two losses of 1 against a limit of 0 double a stake each: a share s becomes (1 + s)^2. Of Beta(1/2, 1/2) the mean
    of s is 1/2, that of its square 3/8.
    """
    assert p_above(np.ones(2), 0.0) == pytest.approx(1 / (1 + 2 / 2 + 3 / 8))
    assert p_above(np.array([-1.0, -1.0]), 0.0) == 1.0 == p_below(np.ones(2), 0.0)
    losses = np.array([1.0, 0.0, 0.25, -1.0, 1.0, 0.5])
    assert p_above(losses, 0.1) == pytest.approx(p_above(losses[::-1], 0.1)), "in any order"


def test_limits_are_the_means_that_are_not_refused() -> None:
    losses = np.array([1.0] * 10 + [0.0] * 30 + [-1.0] * 2)
    low, high = confidence(losses)
    assert low < losses.mean() < high
    assert p_above(losses, low) == pytest.approx(0.025, rel=1e-3) == p_below(losses, high)
    assert confidence(np.empty(0)) == (-1.0, 1.0)
    narrow = confidence(np.tile(losses, 20))
    assert low < narrow[0] < losses.mean() < narrow[1] < high


@pytest.mark.parametrize("losses", [np.zeros(16), np.array([1.0] * 4 + [0.0] * 28), np.array([0.3, 0.1, 0.5] * 4)])
def test_so_many_more_prompts_decide(losses: np.ndarray) -> None:
    more = more_prompts(losses, 0.02, 0.01, 0.01)
    assert more is not None
    times = 1 + more / len(losses)
    whole = np.tile(losses, int(np.ceil(times)) + 1)
    assert min(p_above(whole, 0.02), p_below(whole, 0.02)) <= 0.01
    less = np.tile(losses, max(1, int(0.9 * times)))
    assert min(p_above(less, 0.02), p_below(less, 0.02)) > 0.01
    assert more_prompts(np.array([0.1] * 10), 0.1, 0.05, 0.05) is None, "a loss at the limit is never decided"


def test_a_tolerable_method_is_rarely_eliminated_among_many() -> None:
    """10 methods that lose exactly what is tolerated: in at most 5 % of runs any is called worse, at any round."""
    generator, runs, wrong = np.random.default_rng(2), 100, 0
    for _ in range(runs):
        losses, evidence = [drawn(generator, 128, 0.12, 0.10) for _ in range(10)], [Evidence()] * 10
        for prompts in (8, 16, 32, 64, 128):
            evidence = [before.looked(values[:prompts], 0.02) for before, values in zip(evidence, losses, strict=True)]
        wrong += "worse" in decisions(evidence, 0.05)
    assert wrong / runs <= 0.05 + 3 * (0.05 * 0.95 / runs) ** 0.5


def test_decisions_stay_and_make_room_for_others() -> None:
    bad, good = Evidence().looked(np.ones(20), 0.02), Evidence().looked(np.zeros(600), 0.02)
    between = Evidence(worse=0.02, within=1.0)
    assert decisions([bad, good, between], 0.05) == ["worse", "not worse", "worse"]  # 0.05 over two that are left
    assert decisions([Evidence(), good, between], 0.05) == ["inconclusive", "not worse", "inconclusive"]
    assert next_levels([bad, good, Evidence()], 0.06) == (0.03, 0.03)
    later = bad.looked(np.r_[np.ones(20), -np.ones(200)], 0.02)
    assert decisions([later], 0.05) == ["worse"]
