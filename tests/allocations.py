"""What torch's own allocator on the CPU was asked for while something ran, by its profiler."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.profiler import ProfilerActivity, profile


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
