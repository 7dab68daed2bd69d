"""Odd prompts: a few tokens, equal keys, zeros. `kvbench.extras.conformance` checks more of every policy and score."""

from dataclasses import replace
from typing import Any

import torch

from kvbench.cache.kv_cache import KVCache
from kvbench.eviction.budget import TokenBudget
from kvbench.eviction.evict import Eviction
from kvbench.extras.conformance.tests.test_properties import combination as built
from tests.arrays import layer_of


def combination(policy: str, score: str, budget: int, **fields: Any) -> Eviction:
    """A combination of conf/ with another budget and other fields."""
    parts = built(policy, score)
    assert parts is not None
    return Eviction(replace(parts[0], **fields), parts[1], TokenBudget(budget))


def test_equal_scores_keep_the_oldest() -> None:
    """Rows that give every token the same weight: lower positions win, layer by layer and head by head."""
    keys, values = torch.zeros(2, 50, 10), torch.rand(2, 50, 10)
    same = KVCache((layer_of(torch.ones(6, 8, 10), keys, values),), 50)
    oldest = {"snapkv": [20, 20], "tova_obcache": [20, 20], "lava_uniform": [4 + 32, 4], "ada_snapkv": [4 + 29, 4 + 3]}
    for policy, lengths in oldest.items():
        eviction = combination(policy, "attn", 20, window=1, pool=None, recent=4)
        smaller = eviction(same)
        assert smaller.lengths.tolist() == [lengths]
        assert smaller.layers[0].positions.tolist() == [
            position for length in lengths for position in (*range(length - 4), *range(46, 50))
        ]
