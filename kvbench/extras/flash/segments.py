"""Attention over segments by functions of other packages for sequences of different lengths, as `ragged_decode`.

flash_attn calls flash-attn, varlen torch.nn.attention.varlen. A GPU runs both, in half precision.
"""

import inspect
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec

import torch
from torch import Tensor

from kvbench.cache.kernels.ragged_decode import FlatPairs, PerSegment, SegmentLse, SegmentRows
from kvbench.support.errors import UserError


def flash_attn(
    queries: SegmentRows,
    keys: FlatPairs,
    values: FlatPairs,
    starts: PerSegment,
    lengths: PerSegment,
    scaling: float,
    softcap: float | None = None,
    longest: int | None = None,
) -> tuple[SegmentRows, SegmentLse]:
    """`ragged_decode` by flash-attn on a GPU, in and out in bfloat16 or float16. `longest` avoids reading `lengths`."""
    outputs, lse, *_ = import_module("flash_attn").flash_attn_varlen_func(
        *_sequences(queries, keys, values, starts, lengths, longest),
        softmax_scale=scaling,
        causal=False,
        softcap=softcap or 0.0,
        return_attn_probs=True,
    )
    return _by_segment(outputs, lse, queries, lengths)


def varlen(
    queries: SegmentRows,
    keys: FlatPairs,
    values: FlatPairs,
    starts: PerSegment,
    lengths: PerSegment,
    scaling: float,
    softcap: float | None = None,
    longest: int | None = None,
) -> tuple[SegmentRows, SegmentLse]:
    """`flash_attn` by torch.nn.attention.varlen. Raises UserError for a soft cap."""
    check_softcap("varlen", softcap)
    module = import_module("torch.nn.attention.varlen")
    outputs, lse = module.varlen_attn(
        *_sequences(queries, keys, values, starts, lengths, longest),
        return_aux=module.AuxRequest(lse=True),
        scale=scaling,
    )
    return _by_segment(outputs, lse, queries, lengths)


def check_installed(kernels: str) -> None:
    """Raise UserError for a torch whose varlen_attn lacks what is asked of it."""
    module = "torch.nn.attention.varlen"
    function = getattr(import_module(module), "varlen_attn", None) if find_spec(module) else None
    options = inspect.signature(function).parameters if function else ()
    absent = [option for option in ("return_aux", "scale") if option not in options]
    if kernels == "varlen" and absent:
        raise UserError(
            f"model.kernels=varlen: torch {version('torch')} has no {module}.varlen_attn with {' and '.join(absent)}: "
            "install torch>=2.11, or use model.kernels=torch"
        )


def check_softcap(kernels: str, softcap: float | None) -> None:
    """Raise UserError for kernels that cannot soft-cap logits, where the model does."""
    if kernels == "varlen" and softcap is not None:
        raise UserError(f"model.kernels=varlen does not support a soft cap, here {softcap}: use model.kernels=null")


def _sequences(
    queries: SegmentRows,
    keys: FlatPairs,
    values: FlatPairs,
    starts: PerSegment,
    lengths: PerSegment,
    longest: int | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, int, int]:
    """Return the arguments of a varlen function, where a segment is a sequence of one head: queries, keys and values
    [tokens, 1, head_dim], the bounds of the sequences of queries and of keys, and the longest of each.
    """
    segments, rows, head_dim = queries.shape
    ends = starts[-1:] + lengths[-1:]
    return (
        queries.reshape(segments * rows, 1, head_dim),
        keys[:, None],
        values[:, None],
        torch.arange(segments + 1, dtype=torch.int32, device=queries.device) * rows,
        torch.cat((starts, ends)).to(torch.int32),
        rows,
        int(lengths.max()) if longest is None else longest,
    )


def _by_segment(
    outputs: Tensor, lse: Tensor, queries: SegmentRows, lengths: PerSegment
) -> tuple[SegmentRows, SegmentLse]:
    """Return outputs and log-sum-exp by segment; 0 and -inf for empty ones, whatever the varlen function returns."""
    empty = (lengths == 0)[:, None]
    outputs = outputs.view(queries.shape).masked_fill(empty[..., None], 0)
    return outputs, lse.view(queries.shape[:2]).float().masked_fill(empty, -torch.inf)
