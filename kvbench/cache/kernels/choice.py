"""Which twin computes what: `model.kernels`. Nothing is imported before it is asked for, and nothing stands in for it.

torch       plain PyTorch for everything: runs everywhere, the truth
triton      our own kernels: sums over voting rows, and the frozen prefixes that cells decode over
flash_attn  flash-attn for the prefixes, PyTorch for the sums
varlen      torch.nn.attention.varlen for the prefixes, PyTorch for the sums
"""

import inspect
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any, get_args

import torch

from kvbench.cache.kernels.names import Kernels
from kvbench.support.errors import UserError

INSTALL = {
    "triton": "pip install 'kvbench[kernels]'",
    "flash_attn": "pip install 'kvbench[flash]' --no-build-isolation",
}
"""What installs the package of a twin."""


def check_kernels(kernels: Kernels, device: torch.device, dtype: torch.dtype, head_dim: int = 1) -> None:
    """Raise ValueError, with the fix, for twins that are not there or cannot run in this dtype on this device."""
    if kernels not in get_args(Kernels):
        raise UserError(f"model.kernels={kernels}: legal: {', '.join(get_args(Kernels))}")
    if kernels == "torch":
        return
    check_installed(kernels)
    name = str(dtype).removeprefix("torch.")
    if head_dim > 256:
        raise UserError(f"model.kernels={kernels} knows heads of at most 256, not {head_dim}: use model.kernels=torch")
    if kernels == "triton":
        if dtype == torch.float64:
            raise UserError("model.kernels=triton computes in float32, not in float64: use model.kernels=torch")
        if device.type != "cuda" and not _interpreted():
            raise UserError(
                f"model.kernels=triton runs on a GPU, not on {device.type}: use model.kernels=torch, or set "
                "TRITON_INTERPRET=1 to run the kernels slowly in Triton's interpreter"
            )
    elif device.type != "cuda" or dtype.itemsize > 2:
        raise UserError(
            f"model.kernels={kernels} runs on a GPU in bfloat16 or float16, not on {device.type} in {name}: "
            "use model.kernels=torch"
        )


def check_softcap(kernels: Kernels, softcap: float | None) -> None:
    """Raise ValueError for a twin that cannot cap the logits of a model that does."""
    if kernels == "varlen" and softcap is not None:
        raise UserError(f"model.kernels=varlen knows no soft cap, here {softcap}: use model.kernels=triton or torch")


def check_installed(kernels: Kernels) -> None:
    """Raise ValueError, with the command that installs it, where the package of a twin is missing or too old."""
    if kernels in INSTALL and find_spec(kernels) is None:
        raise UserError(f"model.kernels={kernels}: not installed: {INSTALL[kernels]}, or use model.kernels=torch")
    if kernels == "varlen":
        missing = _missing("torch.nn.attention.varlen", "varlen_attn", ("return_aux", "scale"))
        if missing:
            raise UserError(
                f"model.kernels=varlen: {missing} of torch {torch.__version__}: install torch>=2.11, or use "
                "model.kernels=torch"
            )


def column_sums_of(kernels: Kernels) -> Callable[..., Any] | None:
    """The function of `column_sums` that was chosen, or None where sums stay in plain PyTorch, chunk by chunk."""
    return import_module("kvbench.cache.kernels.column_sums.triton").column_sums if kernels == "triton" else None


def ragged_decode_of(kernels: Kernels) -> Callable[..., Any] | None:
    """The function of `ragged_decode` that was chosen, or None where prefixes are attended to in plain PyTorch."""
    return None if kernels == "torch" else import_module(f"kvbench.cache.kernels.ragged_decode.{kernels}").ragged_decode


def _interpreted() -> bool:
    """Whether Triton was told to interpret before its kernels were imported."""
    return bool(import_module("kvbench.cache.kernels.programs").INTERPRETED)


def _missing(module: str, name: str, options: tuple[str, ...]) -> str | None:
    """What of a function and its options is not there, in words."""
    if find_spec(module) is None:
        return f"no module {module}"
    function = getattr(import_module(module), name, None)
    if function is None:
        return f"no function {module}.{name}"
    lacking = [option for option in options if option not in inspect.signature(function).parameters]
    return f"no option {', '.join(lacking)} in {module}.{name}" if lacking else None
