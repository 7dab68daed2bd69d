"""Decode batches by name of the kernels that attend to them."""

from collections.abc import Iterable

from kvbench.cache.kernels.choice import Kernels
from kvbench.cache.kv_cache import CutCache, KVCache
from kvbench.extras.gpu_decoding.flat_batch import FlatBatch
from kvbench.models.decode.batch import RaggedBatch


def batch_by(kernels: Kernels, caches: Iterable[KVCache | CutCache], cells: int, room: int) -> RaggedBatch:
    """Return a batch with memory of its own."""
    return RaggedBatch(caches, cells, room) if kernels == "torch" else FlatBatch(caches, cells, room, kernels)
