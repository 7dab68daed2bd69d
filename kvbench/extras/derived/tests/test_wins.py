"""Counting on how many tasks one of a pair is better (LAVa, Figure 5)."""

from kvbench.extras.derived.wins import WinsItem, measured_wins
from kvbench.papers.item import item_of
from kvbench.papers.published import published
from kvbench.support import paths
from tests.papers.made_up import placed

PAIR = WinsItem("x/y", "t", settings=("policy=h2o_obcache",), pairs=(("mine", "theirs"),))


def at(policy, budget="64"):
    return policy, "attn" if policy == "theirs" else "lava", budget


def test_a_tie_is_won_by_neither_and_a_task_of_one_alone_does_not_count():
    numbers = {
        "a": {at("mine"): 2.0, at("theirs"): 1.0},
        "b": {at("mine"): 1.0, at("theirs"): 1.0},
        "c": {at("mine"): 1.0, at("theirs"): 3.0},
        "d": {at("mine"): 9.0, at("other"): 1.0},
        "e": {at("mine", "96"): 9.0, at("theirs"): 1.0},
    }
    means = [(task, place, mean) for task, places in numbers.items() for place, mean in places.items()]
    assert PAIR.wins(means) == {at("mine"): (1, 3), at("theirs"): (1, 3)}


def test_ours_are_counted_by_task_and_a_failed_sample_is_told():
    cells = [
        placed(at("mine"), "a", 0.5),
        placed(at("theirs"), "a", 0.25),
        placed(at("mine"), "b", 0.5, samples=2, differs=("task.samples=2 instead",)),
        placed(at("theirs"), "b", 0.75),
    ]
    measured = measured_wins(PAIR, cells)
    mine, theirs = measured[at("mine")], measured[at("theirs")]
    assert (mine.mean, mine.n, mine.failed, theirs.mean, theirs.failed) == (1, 2, 1, 1, 0)
    assert mine.differs == ("task.samples=2 instead",)


def test_published_wins_of_lava_are_those_of_its_tables():
    """At 128 pairs a head, from Tables 2 and 13: uniform layers win 13 of 20 tasks, AdaKV 6, one is a tie."""
    printed = {number.at: number.value for number in published(item_of("lava/figure5"), paths.papers())}
    assert printed["lava_uniform", "lava", "128"] == "13" and printed["ada_snapkv", "attn", "128"] == "6"
