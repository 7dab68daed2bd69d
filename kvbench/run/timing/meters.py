"""What time and energy are measured with: the clock of decode steps, and the energy counter of GPUs.

On CUDA, decode steps are timed with events between the kernels of a stream, so that nothing waits for the device
between two steps: a step takes as long as the device is busy with it or waits for the host, as in real decoding.

Energy is read through NVML (package nvidia-ml-py), which counts millijoules of a whole device since its driver was
loaded (nvmlDeviceGetTotalEnergyConsumption): the work of other processes is included. Older devices do not count.
"""

import importlib
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

import torch


class StepClock:
    """Marks the ends of steps; the first mark is the start of the first step.

    A mark is an event on the current stream of a GPU. On other devices, whose work is finished when a call returns, it
    is the time of the processor's clock.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._marks: list[Any] = []

    def mark(self) -> None:
        """End a step."""
        if self._on_gpu:
            self._marks.append(torch.cuda.Event(enable_timing=True))
            self._marks[-1].record()
        else:
            self._marks.append(time.perf_counter())

    def seconds(self) -> list[float]:
        """The duration of each step, once all have ended."""
        if not self._on_gpu:
            return [end - start for start, end in pairwise(self._marks)]
        self._marks[-1].synchronize()
        return [start.elapsed_time(end) / 1000 for start, end in pairwise(self._marks)]


def energy_meter(devices: Sequence[torch.device], nvml: Any = None) -> Callable[[], float] | None:
    """A function that reads the joules used so far by some GPUs.

    None if one of the devices is not a GPU or does not count, or the machine has no NVML. nvml: the module pynvml, or a
    substitute.
    """
    if not devices or any(device.type != "cuda" for device in devices):
        return None
    if nvml is None:
        try:
            nvml = importlib.import_module("pynvml")
        except ImportError:
            return None
    try:
        nvml.nvmlInit()
        handles = [nvml.nvmlDeviceGetHandleByUUID(_uuid(device)) for device in devices]
        millijoules = sum(nvml.nvmlDeviceGetTotalEnergyConsumption(handle) for handle in handles)
    except nvml.NVMLError:
        return None

    def joules() -> float:
        nonlocal millijoules
        with suppress(nvml.NVMLError):  # if a device stops counting, the last sum stays: no run fails for its energy
            millijoules = sum(nvml.nvmlDeviceGetTotalEnergyConsumption(handle) for handle in handles)
        return millijoules / 1000

    return joules


def visible_gpus() -> list[torch.device]:
    """The GPUs that this process can use."""
    return [torch.device("cuda", index) for index in range(torch.cuda.device_count())]


def _uuid(device: torch.device) -> str:
    """NVML's name of a device; torch leaves out the prefix."""
    if not torch.cuda.is_available():
        return f"GPU-{device.index}"
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"
