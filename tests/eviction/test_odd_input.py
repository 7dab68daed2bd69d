"""Odd prompts: a few tokens, equal keys, zeros. `kvbench.extras.conformance` checks more of every policy and score."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from kvbench.cache.kv_cache import KVCache
from kvbench.eviction.budget import TokenBudget
from kvbench.eviction.evict import Eviction
from kvbench.eviction.policy import Policy
from kvbench.eviction.scores.attn import Attention
from kvbench.extras.conformance.tests.test_properties import combination as built
from kvbench.support.errors import UserError
from tests.arrays import layer_of, random_cache


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


@pytest.mark.parametrize(
    ("array", "message"),
    [
        ("lse", "score attn of layer 1 is not finite: NaN or inf in the observed queries"),
        ("keys", "layer 1 holds NaN or inf in its keys"),
        ("values", "layer 1 holds NaN or inf in its values"),
    ],
)
def test_what_is_no_number_is_named_by_its_place(array: str, message: str) -> None:
    first, second = random_cache(50, layers=2, window=8).layers
    broken = torch.full_like(getattr(second.windows[0] if array == "lse" else second, array), torch.nan)
    if array == "lse":
        second = replace(second, windows=(replace(second.windows[0], lse=broken),))
    else:
        second = replace(second, **{array: broken})
    with pytest.raises(UserError, match=message):
        Eviction(Policy("p", window=8), Attention(), TokenBudget(20))(KVCache((first, second), 50))
