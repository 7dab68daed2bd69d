"""Which engines decode by this extra, and when a CUDA graph replays the steps of an answer."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from kvbench.cache.kernels.choice import Kernels, kernel_module, packages
from kvbench.cache.kv_cache import CutCache, KVCache
from kvbench.extras.gpu_decoding import graph
from kvbench.extras.gpu_decoding.flat_batch import FlatBatch
from kvbench.extras.gpu_decoding.graph_batch import GraphBatch
from kvbench.extras.gpu_decoding.rooms import Rooms
from kvbench.models import bridge
from kvbench.models.decode.batch import DecodeBatch
from kvbench.models.decode.decoding import Decoding
from kvbench.models.decode.evicting_batch import EvictingBatch
from kvbench.models.decode.evicting_cache import EvictingCache
from kvbench.models.decode.next_token import Chosen, Sampler
from kvbench.models.engine import Engine

LEAST_STEPS = 16
"""Steps of an answer from which on a graph of one batch alone pays."""


def gpu_decoding(engine: Engine, cuda_graph: str) -> "GpuDecoding | None":
    """Return how an engine with kernels or a GPU decodes; None for plain PyTorch on a CPU."""
    if engine.kernels == "torch" and engine.device.type == "cpu":
        return None
    uncaptured = why_uncaptured(engine, cuda_graph)
    rooms = Rooms() if uncaptured is None and engine.kernels in packages() else None
    stream = torch.cuda.Stream(engine.device) if uncaptured is None else None
    return GpuDecoding(engine.model, engine.kernels, uncaptured, rooms, stream)


@dataclass(frozen=True)
class GpuDecoding(Decoding):
    """Decoding by kernels over a flat store, or in plain PyTorch, whose steps a graph replays where that is possible.

    uncaptured: why no graph can have the steps of the model; None: one can. rooms: memory of batches that share a
    captured step; None: each batch has its own. stream: on which all steps are captured; of each stream that multiplies
    matrices, cuBLAS keeps 32 MiB for good.
    """

    model: Any
    kernels: Kernels
    uncaptured: str | None
    rooms: Rooms | None = None
    stream: Any = None

    @property
    def bytes_held(self) -> int:
        return 0 if self.rooms is None else self.rooms.bytes_held

    def free(self) -> bool:
        return self.rooms is not None and self.rooms.free()

    def fresh(self) -> "GpuDecoding":
        return replace(self, rooms=self.rooms and Rooms())

    def batch(self, caches: Iterable[KVCache | CutCache], cells: int, max_new_tokens: int) -> GraphBatch:
        if self.kernels == "torch":
            return GraphBatch(caches, cells, max_new_tokens)
        return FlatBatch(caches, cells, max_new_tokens, self.kernels, self.rooms)

    def evicting_batch(self, caches: Sequence[EvictingCache], cells: int, max_new_tokens: int) -> EvictingBatch:
        if self.kernels not in packages():
            return super().evicting_batch(caches, cells, max_new_tokens)
        return kernel_module("slots_batch", self.kernels).SlotsBatch(caches, cells, max_new_tokens)

    def launched(self, batch: DecodeBatch, steps: int) -> str | None:
        least = 2 if isinstance(batch, GraphBatch) and batch.room is not None else LEAST_STEPS
        short = f"answers of less than {least} tokens" if steps < least else None
        return self.uncaptured or batch.uncaptured or short

    def replayed(
        self,
        batch: GraphBatch,
        logits: Float[Tensor, "cells vocabulary"],
        steps: int,
        stop: Collection[int],
        at_least: int,
        choose: Sampler,
    ) -> Iterator[list[Chosen]]:
        return graph.blocks(self.model, batch, logits, steps, stop, at_least, choose, self.stream)


def why_uncaptured(engine: Engine, cuda_graph: str) -> str | None:
    """Return why no CUDA graph can have the steps of a model; None: one can."""
    traits = bridge.traits(engine.model)
    reasons = {
        "no GPU": engine.device.type != "cuda",
        f"model.cuda_graph={cuda_graph}": cuda_graph == "never",
        "several GPUs": len(engine.gpus) != 1,
        "the rotation depends on the length": engine.rope is not None,
        "the host keeps states of layers": bool(traits.stateful),
        "the model counts positions": traits.counts_positions,
        "experts run cell by cell": bool(bridge.experts(engine.model)),
        "the model writes its attention out": bool(bridge.own_attention(engine.model)),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)
