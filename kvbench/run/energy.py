"""Energy that GPUs say they have taken, through NVML where the package nvidia-ml-py is installed.

NVML counts millijoules of a whole device since its driver was loaded (nvmlDeviceGetTotalEnergyConsumption): what other
processes do on the device meanwhile is counted too. Older devices do not count; then there is no number.
"""

import importlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch


def energy_meter(devices: Sequence[torch.device], nvml: Any = None) -> Callable[[], float] | None:
    """What reads joules so far of some GPUs, or None where one of them does not count, on a machine without NVML, and
    where one of the devices is no GPU.

    nvml: the module pynvml, or what stands in for it.
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
        return _reading(nvml, handles)
    except nvml.NVMLError:
        return None


def visible() -> list[torch.device]:
    """The GPUs that this process can use."""
    return [torch.device("cuda", index) for index in range(torch.cuda.device_count())]


def _reading(nvml: Any, handles: Sequence[Any]) -> Callable[[], float]:
    """A device that stops telling leaves the last sum: nobody's run ends for its energy."""
    last = [sum(nvml.nvmlDeviceGetTotalEnergyConsumption(handle) for handle in handles)]

    def joules() -> float:
        with suppress(nvml.NVMLError):
            last[0] = sum(nvml.nvmlDeviceGetTotalEnergyConsumption(handle) for handle in handles)
        return last[0] / 1000

    return joules


def _uuid(device: torch.device) -> str:
    """How NVML names it; torch leaves out the prefix."""
    return (
        f"GPU-{torch.cuda.get_device_properties(device).uuid}" if torch.cuda.is_available() else f"GPU-{device.index}"
    )
