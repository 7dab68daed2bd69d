"""The implementations of attention over the cache that `model.kernels` chooses from; needs no torch to be imported.

`torch` is plain PyTorch: it runs everywhere, and the others are tested against it. Extras bring packages of kernels
for sums, prefixes and evictions of many cells (group `kernels`), and functions for prefixes alone (group `segments`).
Their files may have `keys: {package: NAME, install: COMMAND}`. None is imported before it is chosen, nor replaced.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from kvbench.support.errors import UserError
from kvbench.support.named import Named, named

if TYPE_CHECKING:
    import torch

Kernels = str


@cache  # asked for in every step
def packages() -> dict[str, Named]:
    """Return the packages of kernels that extras bring. Never change the result."""
    return named("kernels")


@cache
def for_segments() -> dict[str, Named]:
    """Return the kernels of extras that read segments alone. Never change the result."""
    return named("segments")


def check_kernels_exist(kernels: Kernels | None) -> None:
    """Raise UserError for a name that no kernels have; None, the default of a device, passes."""
    if kernels is not None and kernels not in (known := ("torch", *packages(), *for_segments())):
        raise UserError(f"model.kernels={kernels}: allowed: {', '.join(known)}")


def check_kernels(kernels: Kernels, device: "torch.device", dtype: "torch.dtype", head_dim: int = 1) -> None:
    """Raise UserError for kernels that are not installed or cannot run with this dtype on this device."""
    check_kernels_exist(kernels)
    if kernels == "torch":
        return
    check_installed(kernels)
    if head_dim > 256:
        raise UserError(
            f"model.kernels={kernels} supports heads of at most 256, not {head_dim}: use model.kernels=torch"
        )
    if kernels in packages():
        kernel_module("programs", kernels).check(device, dtype)
    elif device.type != "cuda" or dtype.itemsize > 2:
        raise UserError(
            f"model.kernels={kernels} runs on a GPU in bfloat16 or float16, not on {device.type} in "
            f"{str(dtype).removeprefix('torch.')}: use model.kernels=torch"
        )


def chosen_kernels(kernels: Kernels | None, device: "torch.device", dtype: "torch.dtype", head_dim: int = 1) -> Kernels:
    """Return kernels of a model, checked as above; None: a package on a GPU where it can run, else plain PyTorch."""
    if kernels is None:
        for package in packages() if device.type == "cuda" else ():
            with suppress(UserError):
                return chosen_kernels(package, device, dtype, head_dim)
        return "torch"
    check_kernels(kernels, device, dtype, head_dim)
    return kernels


def check_installed(kernels: Kernels) -> None:
    """Raise UserError, with the command that installs it, for a missing or too old package."""
    needed = getattr({**packages(), **for_segments()}.get(kernels), "keys", {})
    if "package" in needed and find_spec(needed["package"]) is None:
        raise UserError(f"model.kernels={kernels}: not installed: {needed['install']}, or use model.kernels=torch")
    if kernels in for_segments():
        for_segments()[kernels].load().check_installed(kernels)


def check_softcap(kernels: Kernels, softcap: float | None) -> None:
    """Raise UserError for kernels that cannot soft-cap logits, where the model does."""
    if kernels in for_segments():
        for_segments()[kernels].load().check_softcap(kernels, softcap)


def column_sums_of(kernels: Kernels) -> Callable[..., Any] | None:
    """Return the chosen implementation of `column_sums`; None: plain PyTorch, chunk by chunk."""
    return kernel_module("column_sums", kernels).column_sums if kernels in packages() else None


def ragged_decode_of(kernels: Kernels) -> Callable[..., Any] | None:
    """Return the chosen implementation of `ragged_decode`; None: plain PyTorch."""
    if kernels in packages():
        return kernel_module("ragged_decode", kernels).ragged_decode
    return None if kernels == "torch" else getattr(for_segments()[kernels].load(), kernels)


def kernel_module(operation: str, kernels: Kernels | None = None) -> Any:
    """Return a module of a package of kernels; None: of the first, whose cells' scores ask for it."""
    return import_module(f"{packages()[kernels or next(iter(packages()))].target}.{operation}")
