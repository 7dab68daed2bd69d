"""Moments in the work of devices, and the seconds between them: the host does not wait for a GPU to mark one."""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

Mark = Any
"""A moment: seconds of the host, or an event of each GPU."""


def mark(devices: Iterable[torch.device]) -> Mark:
    """Return the time; of GPUs an event on each."""
    events = []
    for gpu in (device for device in devices if device.type == "cuda"):
        events.append(torch.cuda.Event(enable_timing=True))
        events[-1].record(torch.cuda.current_stream(gpu))
    return tuple(events) or time.perf_counter()


def seconds_between(began: Mark, ended: Mark) -> float:
    """Return the seconds between two marks, once the devices have come to the second: the most of any GPU."""
    if isinstance(began, float):
        return ended - began
    for event in ended:
        event.synchronize()
    return max(first.elapsed_time(last) for first, last in zip(began, ended, strict=True)) / 1000


@dataclass(frozen=True)
class Timed:
    """Seconds of work: those that are `known`, and those between the marks of `spans`."""

    known: float = 0.0
    spans: tuple[tuple[Mark, Mark], ...] = ()

    def __add__(self, other: "Timed") -> "Timed":
        return Timed(self.known + other.known, self.spans + other.spans)

    @property
    def seconds(self) -> float:
        """Read once the work is done, for which the host waits."""
        return self.known + sum(seconds_between(*span) for span in self.spans)
