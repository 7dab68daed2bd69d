"""Memory is really freed: bytes of whole storages against the pairs that stay, for heads of unequal length too."""

from dataclasses import replace

import pytest
import torch

from kvbench.cache.kv_cache import KVCache, from_dense
from kvbench.config.settings import build
from kvbench.eviction.budget import parse_budget
from kvbench.eviction.evict import Eviction
from tests.arrays import random_cache
from tests.composed import composed


def evict(policy: str, cache: KVCache, layout: str = "kv_heads") -> KVCache:
    """A tenth of the cache, as the policy of that name keeps it by default."""
    tree = composed(f"policy={policy}")
    built = replace(build("policy", tree["policy"]), layout=layout)
    return Eviction(built, build("score", tree["score"]), parse_budget("0.1"))(cache)


@pytest.mark.parametrize(
    ("policy", "dtype"),
    [
        ("ada_snapkv", torch.float32),
        ("ada_pyramidkv", torch.bfloat16),
        ("lava", torch.float32),
        ("lava_pyramid", torch.bfloat16),
        ("h2o_kvzip", torch.bfloat16),
    ],
)
def test_a_ragged_tenth_takes_a_tenth_of_the_memory(policy: str, dtype: torch.dtype) -> None:
    """All that is allocated, positions included, is within 5 % of the kept pairs' keys and values."""
    wide = random_cache(400, layers=3, head_dim=64, window=400)
    full = KVCache(tuple(half(layer, dtype) for layer in wide.layers), 400)
    smaller = evict(policy, full)
    assert len({length for layer in smaller.layers for length in layer.lengths}) > 1
    assert smaller.pairs == 40 * 2 * 3
    a_pair = 2 * 64 * dtype.itemsize
    assert smaller.bytes_held == smaller.pairs * a_pair
    assert smaller.bytes_allocated <= 1.05 * smaller.pairs * a_pair
    kept = {tensor.untyped_storage().data_ptr() for layer in smaller.layers for tensor in (layer.keys, layer.values)}
    assert not kept & {
        tensor.untyped_storage().data_ptr() for layer in full.layers for tensor in (layer.keys, layer.values)
    }
    assert not any(layer.windows for layer in smaller.layers)


@pytest.mark.parametrize("policy", ["snapkv", "ada_snapkv"])
def test_a_cache_a_query_head_counts_every_copy(policy: str) -> None:
    """Three query heads a KV head: three times the bytes of the same budget."""
    cache = random_cache(400, window=32)
    native, apart = (evict(policy, cache, layout) for layout in ("kv_heads", "query_heads"))
    assert apart.pairs == 3 * native.pairs and apart.bytes_held == 3 * native.bytes_held
    assert apart.bytes_allocated == 3 * native.bytes_allocated


def half(layer, dtype: torch.dtype):
    """The same layer in another precision."""
    keys, values = (part.to(dtype) for part in layer.dense)
    return from_dense(layer.index, layer.query_heads, keys, values, layer.windows)
