"""Averages over tasks, on full-cache results that LAVa and CAOTE print."""

import pytest

from kvbench.tasks.longbench import MEMBERS
from kvbench.tasks.longbench_averages import ALL, CATEGORIES, CHINESE, average, weights

# Mistral-7B-Instruct-v0.2, LAVa table 2; its head exchanges vcsum and multi_news, which the mean does not see.
LAVA = [26.77, 32.34, 49.63, 48.42, 43.43, 27.89, 18.61, 30.85, 32.92, 24.54, 15.04, 27.20]
LAVA += [71.00, 86.23, 43.41, 39.00, 2.81, 86.56, 89.75, 55.29, 52.55]
# Llama-3.1-8B-Instruct, CAOTE table 2.
CAOTE = [30.05, 47.00, 56.12, 57.33, 47.81, 32.25, 34.86, 25.32, 27.02, 73.00, 91.61, 43.37, 8.33, 99.50, 61.66, 51.94]


def test_every_task_is_in_one_category():
    assert sorted(ALL) == sorted(MEMBERS) and len(CATEGORIES) == 6


def test_published_averages():
    assert round(average(dict(zip(ALL, LAVA, strict=True)), "lava"), 2) == 45.07
    english = [member for member in ALL if member not in CHINESE]
    assert round(average(dict(zip(english, CAOTE, strict=True)), "caote"), 2) == 49.20


def test_the_official_one_is_over_categories():
    """A category of two tasks counts as much as one of four."""
    means = dict.fromkeys(ALL, 0.0) | {"longbench/lcc": 0.6}
    del means["lcc"]
    assert average(means, "official") == pytest.approx(0.6 / 2 / 6)
    assert average(means, "lava") == pytest.approx(0.6 / 20)


@pytest.mark.parametrize("name", ["official", "lava", "caote"])
def test_an_average_is_the_sum_of_its_weights(name: str):
    means = {member: 1 / (number + 2) for number, member in enumerate(ALL)}
    weighted = sum(weight * means[member] for member, weight in weights(name).items())
    assert weighted == pytest.approx(average(means, name)) and sum(weights(name).values()) == pytest.approx(1)


def test_a_task_that_is_missing_is_named():
    with pytest.raises(ValueError, match="the average caote of LongBench lacks 2wikimqa, lcc"):
        average({member: 1.0 for member in ALL if member not in ("lcc", "2wikimqa")}, "caote")
    with pytest.raises(ValueError, match="allowed: official, lava, caote"):
        average({}, "mean")
