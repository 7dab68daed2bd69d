"""Layers on two devices, as `model.device_map` lays them: each layer's cache stays where its weights are.

Layers 0 and 2 lie on the CPU, layer 1 on a pretended GPU; hidden states follow, as accelerate moves them.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from kvbench.cache.quantized import pack_cache
from kvbench.eviction.budget import Tokens
from kvbench.eviction.evict import Eviction
from kvbench.eviction.incremental import IncrementalEviction
from kvbench.eviction.policy import Policy
from kvbench.eviction.scores.attn import Attention
from kvbench.eviction.scores.obcache import OBCacheJoint
from kvbench.models.decode.batch import RaggedBatch
from kvbench.models.decode.quantized_batch import QuantizedBatch
from kvbench.models.decode.shared_batch import SharedCacheBatch
from kvbench.models.engine import Engine
from tests.pretended_gpu import PretendedGpu

PROMPT = torch.randint(3, 97, (41,), generator=torch.Generator().manual_seed(3))
SNAPKV = Policy("snapkv", window=8, recent=8)
EVICTIONS = [Eviction(SNAPKV, score, Tokens(20)) for score in (Attention(), OBCacheJoint())]
GROWING = Eviction(Policy("tova", window=1, recent=0), Attention(), Tokens(20))


def moved(device: str) -> Callable[..., Any]:
    """A hook that brings what a module reads to a device."""

    def to(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(to, value))
        return value.to(device) if isinstance(value, torch.Tensor) else value

    return lambda _, arguments, named: (to(arguments), {name: to(value) for name, value in named.items()})


def spread(engine: Engine) -> Engine:
    """The same engine with layer 1 on the GPU."""
    inner = engine.model.model
    inner.layers[1].to("cuda")
    for module, device in ((inner.layers[1], "cuda"), (inner.layers[2], "cpu")):
        module.register_forward_pre_hook(moved(device), with_kwargs=True)
    return engine


def answers(engine: Engine, store: str) -> tuple[list[str], list[list[float]]]:
    """Where the layers of an evicted cache lie, and the logits of each cell after a question of two tokens."""
    prefilled = engine.prefill(PROMPT, {8})
    decisions = [eviction.decide(prefilled.cache) for eviction in EVICTIONS]
    caches = [eviction.evict(prefilled.cache, each) for eviction, each in zip(EVICTIONS, decisions, strict=True)]
    if store == "growing":
        caches = [engine.prefill_evicting(PROMPT, IncrementalEviction(GROWING, 20), 8).cache]
    if store == "shared":
        batch: Any = SharedCacheBatch(prefilled.cache, [each.kept for each in decisions], engine.tile, 2)
    elif store == "int8":
        batch = QuantizedBatch([pack_cache(cache, "int8") for cache in caches], engine.tile, 2)
    else:
        batch = RaggedBatch(caches, engine.tile, 2)
    logits = engine.read(batch, torch.tensor([[5, 9]]).expand(engine.tile, -1))[: batch.num_active]
    return [layer.keys.device.type for layer in caches[0].layers], logits.tolist()


@pytest.mark.parametrize("store", ["flat", "shared", "int8", "growing"])
def test_the_cache_of_a_layer_stays_on_its_device(store: str, make_engine: Callable[..., Engine]) -> None:
    _, expected = answers(make_engine(block=16, tile=2), store)
    with PretendedGpu(interpret=False) as gpu:
        places, logits = answers(spread(make_engine(block=16, tile=2)), store)
    assert places == ["cpu", "cuda", "cpu"] and not gpu.mixed
    assert torch.allclose(torch.tensor(logits), torch.tensor(expected), atol=1e-4)
