"""Energy that a GPU says it has taken, through NVML where the package nvidia-ml-py is installed.

NVML counts millijoules of a whole device since its driver was loaded (nvmlDeviceGetTotalEnergyConsumption): what other
processes do on the device meanwhile is counted too. Older devices do not count; then there is no number.
"""

import importlib
from collections.abc import Callable
from typing import Any

import torch

INSTALL = "pip install nvidia-ml-py"


def energy_meter(device: torch.device, nvml: Any = None) -> Callable[[], float] | None:
    """What reads joules so far, or None for a device that does not count or a machine without NVML.

    nvml: the module pynvml, or what stands in for it.
    """
    if device.type != "cuda":
        return None
    if nvml is None:
        try:
            nvml = importlib.import_module("pynvml")
        except ImportError:
            return None
    try:
        nvml.nvmlInit()
        uuid = str(torch.cuda.get_device_properties(device).uuid) if torch.cuda.is_available() else ""
        handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}".encode())
        nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except nvml.NVMLError:
        return None
    return lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000
