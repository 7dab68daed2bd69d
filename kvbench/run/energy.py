"""The energy of GPUs, if they count it."""

import importlib
from collections.abc import Callable, Collection
from contextlib import suppress

import torch


def energy_meter(devices: Collection[torch.device]) -> Callable[[], float] | None:
    """Return a function that reads the joules used so far by some GPUs, the work of other processes included.

    NVML (package nvidia-ml-py) counts millijoules of a whole device since its driver was loaded. None if one of the
    devices is not a GPU or does not count, or the machine has no NVML.
    """
    if not devices or any(device.type != "cuda" for device in devices):
        return None
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
        # NVML's name of a device; torch leaves out the prefix
        uuids = [f"GPU-{torch.cuda.get_device_properties(device).uuid}" for device in devices]
        handles = [nvml.nvmlDeviceGetHandleByUUID(uuid) for uuid in uuids]
        millijoules = sum(map(nvml.nvmlDeviceGetTotalEnergyConsumption, handles))
    except nvml.NVMLError:
        return None

    def joules() -> float:
        nonlocal millijoules
        with suppress(nvml.NVMLError):  # if a device stops counting, the last sum stays: no run fails for its energy
            millijoules = sum(map(nvml.nvmlDeviceGetTotalEnergyConsumption, handles))
        return millijoules / 1000

    return joules
