"""What torch's own allocator on the CPU was asked for while something ran, by its profiler."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from kvbench.cache.kv_cache import storage_bytes
from kvbench.extras.gpu_decoding.flat_layer import FlatLayer
from kvbench.models.decode.batch import RaggedBatch


@dataclass(frozen=True)
class Allocated:
    """Bytes: the largest piece asked for at a time, and the most held at a time beyond what was there before."""

    largest: int
    most: int


def allocated(work: Callable[[], object]) -> Allocated:
    """Run `work`, whose result lives until it has been measured."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        result = work()
    assert recorded.profiler is not None and recorded.profiler.kineto_results is not None
    del result
    events: list[Any] = [event for event in recorded.profiler.kineto_results.events() if event.name() == "[memory]"]
    sizes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    held = most = 0
    for size in sizes:
        held += size
        most = max(most, held)
    return Allocated(max(sizes), most)


def stored_bytes(batch: RaggedBatch) -> int:
    """Bytes of all key and value storages of a batch."""
    stores: list[Tensor] = []
    for layer in batch._layers.values():
        stores += [store for run in layer.runs for store in (run.keys, run.values)]
        if isinstance(layer, FlatLayer):
            stores += [layer.keys, layer.values, layer.tail_keys, layer.tail_values]
    return storage_bytes(stores)
