"""Small versions of benchmarks/statistics/coverage.py; benchmarks/results/statistics.md has the tables of the whole."""

import pytest

from benchmarks.statistics.coverage import DESIGNS, SIZES, Design, clustered, coverage, truth

IDS = [design.name for design in DESIGNS]


@pytest.mark.parametrize(("design", "n"), [(DESIGNS[i], n) for i, n in ((1, 50), (3, 200), (6, 200), (8, 50))])
def test_intervals_hold_the_truth_as_often_as_they_say(design: Design, n: int) -> None:
    runs = 1000
    share = coverage(design, n, runs, 599, truth(design, 800_000), everything=False)["used"]
    assert 0.935 - 0.02 <= share <= 0.965 + 0.02


def test_shared_contexts_are_heeded() -> None:
    design = DESIGNS[6]
    shares = clustered(design, 60, 1000, 599, truth(design, 800_000))
    assert 0.925 <= shares["used"] <= 0.97
    assert shares["as if independent"] < shares["used"] - 0.03


@pytest.mark.slow
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("design", DESIGNS, ids=IDS)
def test_coverage_of_every_design(design: Design, n: int) -> None:
    assert 0.935 <= coverage(design, n, 4000, 1999, truth(design), everything=False)["used"] <= 0.965
