"""How prompts are read: `model.attention`. Decoding over ragged caches always runs the same plain code.

sdpa   torch's fused attention; layers with soft-capped logits or sinks, which it does not know, are written out
eager  the softmax written out for every layer: the truth
flash  flash-attn on a GPU in half precision: caps and windows yes, sinks no
"""

from importlib import import_module
from importlib.util import find_spec

import torch
from torch import Tensor

from kvbench.cache.attention import Rule, explicit, fused
from kvbench.models.loading.spec import Backend
from kvbench.models.prefill import Attend
from kvbench.support.errors import UserError

INSTALL_FLASH = "pip install 'kvbench[flash]' --no-build-isolation"


def prompt_attention(backend: Backend) -> Attend:
    """The function that reads prompts. Raises ValueError, with the command, where its package is missing."""
    if backend == "flash" and find_spec("flash_attn") is None:
        raise UserError(f"model.attention=flash needs flash-attn: {INSTALL_FLASH}, or use model.attention=sdpa")
    return {"sdpa": fused, "eager": explicit, "flash": flash}[backend]


def check_backend(backend: Backend, device: torch.device, dtype: torch.dtype) -> None:
    """Raise ValueError where a backend cannot run in this dtype on this device."""
    if backend == "flash" and (device.type != "cuda" or dtype.itemsize > 2):
        raise UserError(
            f"model.attention=flash runs on a GPU in bfloat16 or float16, not on {device.type} in "
            f"{str(dtype).removeprefix('torch.')}: use model.attention=sdpa"
        )


def flash(queries: Tensor, keys: Tensor, values: Tensor, rule: Rule) -> Tensor:
    """Outputs [heads, queries, head_dim] of the newest rows by flash-attn, whose causal mask ends bottom right.

    Raises ValueError for a layer with sinks.
    """
    if rule.sinks is not None:
        raise UserError("model.attention=flash knows no attention sinks: use model.attention=sdpa")
    attend = import_module("flash_attn").flash_attn_func
    window = (-1, -1) if rule.sliding_window is None else (rule.sliding_window - 1, 0)
    rows = (part.transpose(0, 1)[None] for part in (queries, keys, values))
    output = attend(*rows, softmax_scale=rule.scaling, causal=True, window_size=window, softcap=rule.softcap or 0.0)
    return output[0].transpose(0, 1)
