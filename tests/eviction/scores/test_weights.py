"""VATP and LAVa: what multiplies attention, where, and over which columns."""

import torch

from kvbench.cache.kv_cache import KVCache, from_dense
from kvbench.eviction.budget import TokenBudget
from kvbench.eviction.evict import Eviction
from kvbench.eviction.policy import Policy
from kvbench.eviction.pooling import Pool
from kvbench.eviction.scores.weighted import Lava
from tests.arrays import random_layer

LAYER = random_layer(50, window=8)
POOL = Pool("max", 7)


def test_lava_can_look_at_every_value() -> None:
    """As equation 5 writes the maximum: the recent tokens, which are protected, count too."""
    keys, values = (part.clone() for part in LAYER.dense)
    values[:, 47] = 1000.0
    cache = KVCache((from_dense(0, 6, keys, values, LAYER.windows),), 50)
    policy = Policy("p", window=8, reduce="mean", recent=6, pool=POOL)
    near, far = (
        Eviction(policy, Lava(over=over), TokenBudget(20)).rank(cache)[0].scores for over in ("candidates", "all")
    )
    largest = LAYER.dense[1][:, :44].abs().sum(-1).amax(1)
    assert torch.allclose(far, near / largest[:, None] * 10000, rtol=1e-5)
