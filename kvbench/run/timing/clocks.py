"""The clock of steps that follow one another: events of the device on CUDA, the processor's clock elsewhere.

Events are put between the kernels of a stream, so that nobody waits for the device between two steps: a step is as long
as the device is busy with it or waits to be told what to do, as in a program that decodes.
"""

import time
from itertools import pairwise
from typing import Any, Protocol

import torch


class Steps(Protocol):
    """Marks the ends of steps, the first mark being the start of the first step."""

    def mark(self) -> None: ...

    def seconds(self) -> list[float]:
        """Of each step, once all have ended."""
        ...


class HostSteps:
    """Marks read the processor's clock: for devices whose work has ended when a call returns."""

    def __init__(self) -> None:
        self._marks: list[float] = []

    def mark(self) -> None:
        self._marks.append(time.perf_counter())

    def seconds(self) -> list[float]:
        return [later - before for before, later in pairwise(self._marks)]


class DeviceSteps:
    """Marks are events on the current stream of a GPU."""

    def __init__(self) -> None:
        self._marks: list[Any] = []

    def mark(self) -> None:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._marks.append(event)

    def seconds(self) -> list[float]:
        self._marks[-1].synchronize()
        return [before.elapsed_time(later) / 1000 for before, later in pairwise(self._marks)]


def steps_on(device: torch.device) -> Steps:
    """The clock for steps on a device."""
    return DeviceSteps() if device.type == "cuda" else HostSteps()
