"""How fast a device copies and multiplies, measured where and when something else is timed.

What these are good for is to say whether a time is near what the device can do; a data sheet says what it never does.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

REPEATS = 5
COPIED = {"cuda": 1 << 30, "cpu": 1 << 26}
"""Bytes of the array that is copied: far more than a cache of the processor holds."""
SIDE = {"cuda": 8192, "cpu": 1024}
"""Rows and columns of the matrices that are multiplied."""


@dataclass(frozen=True)
class Ceiling:
    """bytes_per_second: read and written. flops_per_second: two a multiply-add."""

    bytes_per_second: float
    flops_per_second: float


def ceiling(device: torch.device, dtype: torch.dtype, sync: Callable[[], None], scale: float = 1.0) -> Ceiling:
    """The best of a few copies and products, after one that is not timed. scale: of the sizes, smaller for tests."""
    kind = device.type if device.type in COPIED else "cpu"
    source = torch.ones(int(COPIED[kind] * scale), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copying = _best(lambda: target.copy_(source), sync)
    copied, side = len(source), max(8, int(SIDE[kind] * scale))
    del source, target
    left = torch.ones(side, side, dtype=dtype, device=device)
    out = torch.empty_like(left)
    multiplying = _best(lambda: torch.mm(left, left, out=out), sync)
    return Ceiling(2 * copied / copying, 2 * side**3 / multiplying)


def _best(work: Callable[[], object], sync: Callable[[], None]) -> float:
    work()
    found = []
    for _ in range(REPEATS):
        sync()
        start = time.perf_counter()
        work()
        sync()
        found.append(time.perf_counter() - start)
    return max(min(found), 1e-9)
