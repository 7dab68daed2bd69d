"""The implementations of attention over the cache that `model.kernels` chooses from; needs no torch to be imported.

torch       plain PyTorch for everything: runs everywhere; the others are tested against it
triton      our own kernels, an extra: column sums over the observation window, and frozen prefixes of a decode batch
flash_attn  flash-attn for the prefixes, PyTorch for the sums
varlen      torch.nn.attention.varlen for the prefixes, PyTorch for the sums

A package is imported when it is chosen. None is replaced by another one silently.
"""

import inspect
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, get_args

import yaml

from kvbench.support.errors import UserError
from kvbench.support.plugins import own_sources, usable_plugins
from kvbench.support.settings_file import LOADER

if TYPE_CHECKING:
    import torch

Kernels = Literal["torch", "triton", "flash_attn", "varlen"]

INSTALL = {
    "triton": "pip install 'kvbench[kernels]'",
    "flash_attn": "pip install 'kvbench[flash]' --no-build-isolation",
}
"""The command that installs the package of each choice."""


def check_kernels(kernels: Kernels, device: "torch.device", dtype: "torch.dtype", head_dim: int = 1) -> None:
    """Raise UserError for kernels that are not installed or cannot run with this dtype on this device."""
    if kernels not in get_args(Kernels):
        raise UserError(f"model.kernels={kernels}: allowed: {', '.join(get_args(Kernels))}")
    if kernels == "torch":
        return
    check_installed(kernels)
    if head_dim > 256:
        raise UserError(
            f"model.kernels={kernels} supports heads of at most 256, not {head_dim}: use model.kernels=torch"
        )
    if kernels == "triton":
        kernel_module("programs").check(device, dtype)
    elif device.type != "cuda" or dtype.itemsize > 2:
        name = str(dtype).removeprefix("torch.")
        raise UserError(
            f"model.kernels={kernels} runs on a GPU in bfloat16 or float16, not on {device.type} in {name}: "
            "use model.kernels=torch"
        )


def chosen_kernels(kernels: Kernels | None, device: "torch.device", dtype: "torch.dtype", head_dim: int = 1) -> Kernels:
    """Return kernels of a model, checked as above; for None Triton on a GPU where it can run, else plain PyTorch."""
    if kernels is None:
        try:
            return chosen_kernels("triton" if device.type == "cuda" else "torch", device, dtype, head_dim)
        except UserError:
            return "torch"
    check_kernels(kernels, device, dtype, head_dim)
    return kernels


def check_installed(kernels: Kernels) -> None:
    """Raise UserError, with the command that installs it, for a missing or too old package."""
    if kernels in INSTALL and (find_spec(kernels) is None or (kernels == "triton" and _triton() is None)):
        raise UserError(f"model.kernels={kernels}: not installed: {INSTALL[kernels]}, or use model.kernels=torch")
    if kernels == "varlen":
        module = "torch.nn.attention.varlen"
        function = getattr(import_module(module), "varlen_attn", None) if find_spec(module) else None
        options = inspect.signature(function).parameters if function else ()
        if absent := [option for option in ("return_aux", "scale") if option not in options]:
            raise UserError(
                f"model.kernels=varlen: torch {version('torch')} has no {module}.varlen_attn with "
                f"{' and '.join(absent)}: install torch>=2.11, or use model.kernels=torch"
            )


def column_sums_of(kernels: Kernels) -> Callable[..., Any] | None:
    """Return the chosen implementation of `column_sums`; None: plain PyTorch, chunk by chunk."""
    return kernel_module("column_sums").column_sums if kernels == "triton" else None


def ragged_decode_of(kernels: Kernels) -> Callable[..., Any] | None:
    """Return the chosen implementation of `ragged_decode`; None: plain PyTorch."""
    if kernels == "triton":
        return kernel_module("ragged_decode").ragged_decode
    return None if kernels == "torch" else getattr(import_module("kvbench.cache.kernels.ragged_decode"), kernels)


def kernel_module(operation: str) -> Any:
    """Return a module of the Triton kernels by its name."""
    return import_module(f"{_triton()}.{operation}")


@cache  # asked for in every step
def _triton() -> str | None:
    """Return the package that holds the Triton kernels, as its settings file names it; None: it was taken away."""
    files = (source.conf / "kernels" / "triton.yaml" for source in (*own_sources(), *usable_plugins()))
    targets = [yaml.load(file.read_text("utf-8"), LOADER)["_target_"] for file in files if file.is_file()]
    return targets[0] if targets else None
