"""Times by the device's own events, as medians with their spread; by the processor's clock where there is no GPU."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Times:
    """Milliseconds of several runs."""

    middle: float
    least: float
    most: float
    runs: int


def times(work: Callable[[], object], device: torch.device, runs: int = 25, warm: int = 3) -> Times:
    """Run `work` a few times unmeasured, which compiles what it needs, then `runs` times one by one."""
    for _ in range(warm):
        work()
    if device.type != "cuda":
        taken = []
        for _ in range(runs):
            start = time.perf_counter()
            work()
            taken.append(1000 * (time.perf_counter() - start))
        return Times(statistics.median(taken), min(taken), max(taken), runs)
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(runs)]
    cold = torch.empty(2**28, dtype=torch.uint8, device=device)  # written between runs: nothing is left in the L2 cache
    for start, stop in events:
        cold.zero_()
        start.record()
        work()
        stop.record()
    torch.cuda.synchronize()
    taken = [start.elapsed_time(stop) for start, stop in events]
    return Times(statistics.median(taken), min(taken), max(taken), runs)
