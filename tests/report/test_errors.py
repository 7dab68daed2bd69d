"""The demands of benchmarks/statistics/errors.py; benchmarks/results/statistics.md has its tables."""

import pytest

from benchmarks.statistics.errors import Make, gate, gates, power, verdicts

DEMANDED = [entry for entry in gates() if entry[2:] != (0, 1)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "low", "high"), [entry[1:] for entry in DEMANDED], ids=[entry[0] for entry in DEMANDED]
)
def test_the_gate_fails_as_often_as_it_should(make: Make, low: float, high: float) -> None:
    assert low <= gate(make, 1000, seed=1)["fails"] <= high


def test_false_verdicts_are_rare() -> None:
    assert verdicts(200, 0.1, 150) <= 0.05 + 0.04


def test_what_a_line_sees_is_found_four_times_in_five() -> None:
    shift, detected = power(200, 0.2, 600)
    assert 0.1 < shift < 0.15 and 0.73 < detected < 0.85
