"""Layers of one model on two devices, as `model.device_map` lays them: logits against those of one device.

python -m benchmarks.first_hour.devices [--cpu]

Every second layer of the embedded model lies on another GPU, or on the CPU where there is one GPU alone. Hidden states
follow by hooks, as accelerate, which need not be there, moves them.
"""

import argparse
import json
from typing import Any

import torch

from kvbench.eviction.budget import TokenBudget
from kvbench.eviction.evict import Eviction
from kvbench.eviction.incremental import IncrementalEviction
from kvbench.eviction.policy import Policy
from kvbench.eviction.scores.attn import Attention
from kvbench.eviction.scores.obcache import OBCacheJoint
from kvbench.extras.stores.quantized import pack_cache
from kvbench.extras.stores.quantized_batch import QuantizedBatch
from kvbench.models.decode.batch import RaggedBatch
from kvbench.models.engine import Engine
from kvbench.models.loading.load import load, model_info
from kvbench.models.loading.spec import ModelSpec

SNAPKV = Policy("snapkv", window=8, recent=8)
EVICTIONS = [Eviction(SNAPKV, score, TokenBudget(20)) for score in (Attention(), OBCacheJoint())]
GROWING = Eviction(Policy("tova_obcache", window=1, recent=0), Attention(), TokenBudget(20))
STORES = ("flat", "int8", "growing")
PROMPT = torch.randint(3, 97, (41,), generator=torch.Generator().manual_seed(3))
MOST = 1e-3
"""By how much logits may differ in float32."""


def spread(engine: Engine, other: torch.device) -> list[str]:
    """Move every second layer; the device type of each layer's weights."""

    def to(value: Any, device: torch.device) -> Any:
        if isinstance(value, tuple):
            return tuple(to(part, device) for part in value)
        return value.to(device) if isinstance(value, torch.Tensor) else value

    def follow(module: Any, arguments: Any, named: dict[str, Any]) -> Any:
        device = next(module.parameters()).device
        return to(arguments, device), {name: to(value, device) for name, value in named.items()}

    inner = engine.model.model
    for number, layer in enumerate(inner.layers):
        if number % 2:
            layer.to(other)
        layer.register_forward_pre_hook(follow, with_kwargs=True)
    inner.norm.register_forward_pre_hook(follow, with_kwargs=True)
    return [next(layer.parameters()).device.type for layer in inner.layers]


def logits(engine: Engine, store: str) -> tuple[list[str], torch.Tensor]:
    """Where the layers of an evicted cache lie, and the logits of each cell after a question of two tokens."""
    prefilled = engine.prefill(PROMPT, {8})
    decisions = [eviction.decide(prefilled.cache) for eviction in EVICTIONS]
    caches = [eviction.evict(prefilled.cache, each) for eviction, each in zip(EVICTIONS, decisions, strict=True)]
    if store == "growing":
        caches = [engine.prefill_evicting(PROMPT, IncrementalEviction(GROWING, 20), 8).cache]
    if store == "int8":
        batch: Any = QuantizedBatch([pack_cache(cache, "int8") for cache in caches], engine.max_batch, 2)
    else:
        batch = RaggedBatch(caches, engine.max_batch, 2)
    read = engine.read(batch, torch.tensor([[5, 9]]).expand(engine.max_batch, -1))[: batch.num_active]
    return [layer.keys.device.type for layer in caches[0].layers], read.cpu()


def main() -> int:
    """Compare and print; 1 if a cache is not where its layer is, or logits differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpu", action="store_true")
    options = parser.parse_args()
    first = "cpu" if options.cpu else "cuda"
    second = "cuda:1" if first == "cuda" and torch.cuda.device_count() > 1 else "cpu"
    kernels = "torch" if second == "cpu" else None  # Triton has none for a CPU
    spec, good = ModelSpec("reference", dtype="float32", device=first, kernels=kernels), True
    for store in STORES:
        _, expected = logits(load(model_info(spec)).engine, store)
        engine = load(model_info(spec)).engine
        weights = spread(engine, torch.device(second))
        places, spread_logits = logits(engine, store)
        difference = float((spread_logits - expected).abs().max())
        good &= places == weights and difference <= MOST
        print(json.dumps({"store": store, "layers": weights, "caches": places, "difference": difference}), flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
