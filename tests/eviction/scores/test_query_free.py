"""Scores that need no evidence."""

import torch

from kvbench.eviction.scores.keys import LagKV
from kvbench.eviction.scores.random import Random
from tests.arrays import random_layer


def test_random_depends_on_seed_layer_and_length_only() -> None:
    """Not on the global generator, nor on what was drawn before."""
    first = Random(seed=3)(random_layer(40, index=1), None, "sum")
    torch.manual_seed(1)
    torch.rand(5)
    assert torch.equal(first, Random(seed=3)(random_layer(40, index=1, seed=9), None, "sum"))
    for other in (
        Random(seed=4)(random_layer(40, index=1), None, "sum"),
        Random(seed=3)(random_layer(40, index=2), None, "sum"),
        Random(seed=3)(random_layer(41, index=1), None, "sum")[:, :40],
    ):
        assert not torch.equal(first, other)


def test_two_whole_partitions_are_needed_to_rank_one() -> None:
    """LagKV's lag_kv.py: with one token less nothing is scored, and the oldest rank last."""
    score = LagKV(sink=3, lag=10)
    ranked = score(random_layer(23), None, "sum")
    assert (ranked[:, :3] == 2).all() and (ranked[:, 13:] > 1).all()
    places = (torch.arange(10) / 10).expand(len(ranked), 10)
    torch.testing.assert_close(ranked[:, 3:13].sort(dim=1).values, places)
    unranked = score(random_layer(22), None, "sum")
    assert (unranked >= 1).all() and (unranked[:, 3:].diff(dim=1) > 0).all()
