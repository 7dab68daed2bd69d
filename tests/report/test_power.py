"""Power and smallest losses are those of the test, by simulation."""

import numpy as np
import pytest

from kvbench.report.stats.paired_tests import sign_flip
from kvbench.report.stats.power import POWER, effective_prompts, power, smallest_loss


@pytest.mark.parametrize(("prompts", "noise", "loss"), [(12, 0.0, 0.8), (60, 0.05, 0.25), (300, 0.02, 0.06)])
def test_power_is_that_of_the_test(prompts: int, noise: float, loss: float) -> None:
    generator = np.random.default_rng(prompts)
    level, runs = 0.004, 400
    found = 0
    for _ in range(runs):
        won, lost = generator.binomial(prompts, noise), generator.binomial(prompts, noise + loss)
        found += sign_flip(np.repeat([1.0, -1.0], [won, lost]), "less").p <= level if won + lost else 0
    expected = power(prompts, level, noise, loss)
    assert found / runs == pytest.approx(expected, abs=4 * np.sqrt(expected * (1 - expected) / runs) + 1e-9)


def test_the_smallest_loss_is_found_four_times_in_five() -> None:
    for prompts, noise in ((8, 0.0), (50, 0.0), (50, 0.05), (1000, 0.02)):
        smallest = smallest_loss(prompts, 0.004, noise)
        assert power(prompts, 0.004, noise, smallest) >= POWER > power(prompts, 0.004, noise, smallest - 2e-4)
    assert smallest_loss(7, 0.004, 0.0) is None and smallest_loss(50, 0.004, 0.0) < 0.2
    assert smallest_loss(400, 0.004, 0.02) < smallest_loss(100, 0.004, 0.02) < smallest_loss(100, 0.004, 0.05)


def test_prompts_count_and_answers_count_less() -> None:
    assert effective_prompts(np.ones(50), 1.0) == effective_prompts(np.ones(50), 0.0) == 50
    assert effective_prompts(np.full(50, 20.0), 1.0) == 50 and effective_prompts(np.full(50, 20.0), 0.0) == 1000
    assert 50 < effective_prompts(np.full(50, 20.0), 0.4) < 125
    assert effective_prompts(np.array([46.0, 1, 1, 1, 1]), 1.0) < 1.2, "nearly all questions are about one context"
