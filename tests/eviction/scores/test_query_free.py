"""Scores that need no evidence."""

import torch

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
