"""Which products a CPU computes fastest, timed once per machine and version of torch.

The bits of a row depend on the choice, not on when it was made: equal choices give equal bits. `home()/products` keeps
what was measured; of processes that time at the same moment, all take what the first one wrote.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from kvbench.models.linear_layers import LAYERS, Products, rows_agree
from kvbench.support.paths import home

VARIABLES = ("ATEN_CPU_CAPABILITY", "DNNL_MAX_CPU_ISA", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA")
"""Settings of the libraries that can make another product the fastest."""
PROMPT_ROWS, PROMPT_PASSES = 128, 8
"""A prompt of 1024 tokens, of which an eighth is timed."""
BATCH_ROWS, BATCH_STEPS = 16, 32
"""Rows of a decode batch, and its steps after such a prompt."""
NUMBERS = 2**24
"""Numbers of the weights that a step is timed with: 64 MiB, more than the caches of most processors hold."""
FEWEST_NUMBERS = 2**20
"""Numbers below which nothing is timed: Python takes longer than the products, and noise would choose."""
ROUNDS, LONGEST = 3, 0.3
"""Times that the sides take turns, and seconds after which no further turn begins; the shortest time counts."""
GAIN = 0.9
"""The part of oneDNN's time that another choice must stay below: less is not worth other bits of a machine's rows."""
DTYPE_SHAPE = (256, 1536, 576)
"""Rows, outputs and inputs of the product that is timed in two dtypes."""

Seconds = Mapping[str, float]


def fastest_products(layers: Sequence[nn.Linear]) -> Products:
    """Return fastest products for a prompt and a batch, by times of the first layers; oneDNN's unless others gain."""
    numbers = accumulate(layer.weight.numel() for layer in layers)
    timed = [layer for layer, read in zip(layers, numbers, strict=True) if read - layer.weight.numel() < NUMBERS]
    if sum(layer.weight.numel() for layer in timed) < FEWEST_NUMBERS:
        return "onednn"
    shapes = [list(layer.weight.shape) for layer in timed]
    seconds = remembered("products", {"shapes": shapes}, lambda: _seconds_of_products(timed))
    prompt, batch = ({side: seconds[f"{side}_{part}"] for side in ("onednn", "torch")} for part in ("prompt", "batch"))
    costs: dict[Products, float] = {
        "onednn": prompt["onednn"] + batch["onednn"],
        "mixed": prompt["torch"] + batch["onednn"],
    }
    if seconds["torch_agrees"]:
        costs["torch"] = prompt["torch"] + batch["torch"]
    fastest = min(costs, key=lambda products: costs[products])
    return fastest if costs[fastest] < GAIN * costs["onednn"] else "onednn"


def half_is_slower(dtype: torch.dtype) -> bool:
    """Return whether a product in a half precision takes longer than one in float32 on this CPU."""
    seconds = remembered("dtype", {"dtype": str(dtype)}, lambda: _seconds_of_dtypes(dtype))
    return seconds["half"] > seconds["float32"]


def remembered(name: str, own_conditions: Mapping[str, Any], measure: Callable[[], Seconds]) -> Seconds:
    """Return the result of the first call of `measure` on this machine with this torch, libraries and threads.

    Without a writable folder it is called every time.
    """
    conditions = {
        **own_conditions,
        "processor": processor(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
    }
    digest = hashlib.sha256(json.dumps(conditions, sort_keys=True).encode()).hexdigest()[:16]
    path = home() / "products" / f"{name}-{digest}.json"
    if (seconds := _read(path)) is not None:
        return seconds
    seconds = measure()
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps({"seconds": dict(seconds), "conditions": conditions}) + "\n", "utf-8")
        try:
            os.link(temporary, path)  # fails if another process was faster
        finally:
            temporary.unlink()
    return _read(path) or seconds


def processor() -> str:
    """Return the name of the processor as Linux has it; empty elsewhere."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return ""


def _read(path: Path) -> Seconds | None:
    """Return the seconds in a file; None if there is none. One that is not whole is removed."""
    try:
        return {name: float(value) for name, value in json.loads(path.read_text("utf-8"))["seconds"].items()}
    except OSError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError):
        path.unlink(missing_ok=True)
        return None


@torch.inference_mode()
def _seconds_of_products(layers: Sequence[nn.Linear]) -> Seconds:
    """Return seconds of torch's and oneDNN's products for a prompt and for the steps of a batch, and whether rows of
    torch's have the same bits in any number of rows.
    """
    sides = {side: [LAYERS[side](layer) for layer in layers] for side in ("onednn", "torch")}
    once = {tuple(layer.weight.shape): place for place, layer in enumerate(layers)}.values()
    repeats = sum(layer.weight.numel() for layer in layers) / sum(layers[place].weight.numel() for place in once)
    inputs = {layer.in_features: torch.randn(PROMPT_ROWS, layer.in_features) for layer in layers}

    def passed(side: str, places: Sequence[int], rows: int) -> Callable[[], object]:
        chosen = [sides[side][place] for place in places]
        return lambda: [layer(inputs[layer.in_features][:rows]) for layer in chosen]

    prompt = _shortest({side: passed(side, list(once), PROMPT_ROWS) for side in sides})
    batch = _shortest({side: passed(side, range(len(layers)), BATCH_ROWS) for side in sides})
    return {
        **{f"{side}_prompt": prompt[side] * repeats * PROMPT_PASSES for side in sides},
        **{f"{side}_batch": batch[side] * BATCH_STEPS for side in sides},
        "torch_agrees": float(all(rows_agree(sides["torch"][place]) for place in once)),
    }


@torch.inference_mode()
def _seconds_of_dtypes(half: torch.dtype) -> Seconds:
    rows, outputs, inputs = DTYPE_SHAPE

    def product(dtype: torch.dtype) -> Callable[[], object]:
        left, right = torch.randn(rows, inputs).to(dtype), torch.randn(outputs, inputs).to(dtype)
        return lambda: F.linear(left, right)

    return _shortest({"half": product(half), "float32": product(torch.float32)})


def _shortest(calls: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """Return the shortest processor time of each call; they take turns, after one that warms up."""
    begin, seconds = time.process_time(), {name: [] for name in calls}
    for turn in range(1 + ROUNDS):
        if turn > 1 and time.process_time() - begin > LONGEST:
            break
        for name, call in calls.items():
            start = time.process_time()
            call()
            if turn:
                seconds[name].append(time.process_time() - start)
    return {name: min(times) for name, times in seconds.items()}
