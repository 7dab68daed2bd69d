"""flash-attn 2 and 3 for the prefill, as installed packages or as compiled kernels of the Hub.

`model.attention` chooses: flash and flash3 call the packages that flash-attention's repository builds, flash_hub and
flash3_hub what `kernels` (https://github.com/huggingface/kernels) fetches for the installed torch and CUDA. All four
have one function with the same arguments; version 3 runs on GPUs of Hopper's kind alone and may return the log-sum-exp
beside its outputs. Of a kernel of the Hub the major version is fixed, so that its arguments stay.
"""

from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import NamedTuple

import torch
from torch import Tensor

from kvbench.cache.attention import AttentionParams
from kvbench.models.prefill import Attend
from kvbench.support.errors import MissingFile, UserError


class Flash(NamedTuple):
    """Where a function is from: the module that must be installed, the command for it, a repository of the Hub, the
    least compute capability of a GPU."""

    module: str
    install: str
    hub: tuple[str, int] | None = None
    capability: int = 8


HOPPER = "python setup.py install in the folder hopper of github.com/Dao-AILab/flash-attention"
SOURCES = {
    "flash": Flash("flash_attn", "pip install 'kvbench[flash]' --no-build-isolation"),
    "flash3": Flash("flash_attn_interface", HOPPER, capability=9),
    "flash_hub": Flash("kernels", "pip install kernels", ("kernels-community/flash-attn2", 4)),
    "flash3_hub": Flash("kernels", "pip install kernels", ("kernels-community/flash-attn3", 1), 9),
}


def attention_of(backend: str) -> Attend:
    """Return the attention of a value of `model.attention` in ``SOURCES``. Raises UserError if its package is
    missing.
    """
    source = SOURCES[backend]
    if find_spec(source.module) is None:
        package = "flash-attn" if source.hub is None else f"the package {source.module}"
        raise UserError(f"model.attention={backend} needs {package}: {source.install}, or use model.attention=sdpa")

    def attend(queries: Tensor, keys: Tensor, values: Tensor, rule: AttentionParams) -> Tensor:
        """Return outputs [heads, rows, size] of the newest rows; the causal mask ends bottom right. No attention
        sinks.
        """
        if rule.sinks is not None:
            raise UserError(f"model.attention={backend} does not support attention sinks: use model.attention=sdpa")
        window = (-1, -1) if rule.sliding_window is None else (rule.sliding_window - 1, 0)
        rows = (part.transpose(0, 1)[None] for part in (queries, keys, values))
        options = {"softmax_scale": rule.scaling, "causal": True, "window_size": window, "softcap": rule.softcap or 0.0}
        output = _function(backend)(*rows, **options)
        return (output[0] if isinstance(output, tuple) else output)[0].transpose(0, 1)

    return attend


def check(backend: str, device: torch.device, dtype: torch.dtype) -> None:
    """Raise UserError if the device is no GPU of this kind or the dtype is not half precision."""
    if device.type != "cuda" or dtype.itemsize > 2:
        raise UserError(
            f"model.attention={backend} runs on a GPU in bfloat16 or float16, not on {device.type} in "
            f"{str(dtype).removeprefix('torch.')}: use model.attention=sdpa"
        )
    least = SOURCES[backend].capability
    if least > 8 and (own := torch.cuda.get_device_capability(device))[0] < least:
        raise UserError(
            f"model.attention={backend} runs on GPUs of compute capability {least}.0 or more (H100), not {own[0]}."
            f"{own[1]}: use model.attention={backend.replace('3', '')}"
        )


@cache
def _function(backend: str) -> Callable[..., Tensor | tuple[Tensor, ...]]:
    """Return the function itself; of the Hub it is fetched once. Raises MissingFile if the Hub has none for this
    machine.
    """
    source = SOURCES[backend]
    module = import_module(source.module)
    if source.hub is not None:
        repository, version = source.hub
        try:
            module = module.get_kernel(repository, version=version)
        except Exception as error:  # kernels raises many kinds: no network, no build for this torch or GPU
            reason = " ".join(str(error).split())
            raise MissingFile(f"model.attention={backend}: no kernel of {repository} was loaded: {reason}") from error
    return module.flash_attn_func
