"""Ragged attention by flash-attn's function for sequences of different lengths: a segment is a sequence of one head.

The rows of a segment all see all of its pairs, so they are tokens of a query without a causal mask. Pairs of segments
lie one after the other without gaps, as in a cache: that is how flash-attn is told of lengths.
"""

from importlib import import_module

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kvbench.kernels.ragged_decode.sequences import bounds, emptied


def ragged_decode(
    queries: Float[Tensor, "segments rows head_dim"],
    keys: Float[Tensor, "pairs head_dim"],
    values: Float[Tensor, "pairs head_dim"],
    starts: Int[Tensor, "segments"],
    lengths: Int[Tensor, "segments"],
    scaling: float,
    softcap: float | None = None,
    longest: int | None = None,
) -> tuple[Float[Tensor, "segments rows head_dim"], Float[Tensor, "segments rows"]]:
    """Outputs, in the dtype of the inputs, and log-sum-exp as `naive.ragged_decode`; see there.

    Needs a GPU and bfloat16 or float16. `longest` spares reading `lengths` back.
    """
    segments, rows, head_dim = queries.shape
    outputs, lse, *_ = import_module("flash_attn").flash_attn_varlen_func(
        queries.reshape(segments * rows, 1, head_dim),
        keys[:, None],
        values[:, None],
        bounds(torch.arange(segments, device=queries.device) * rows, rows),
        bounds(starts, lengths[-1]),
        rows,
        int(lengths.max()) if longest is None else longest,
        softmax_scale=scaling,
        causal=False,
        softcap=softcap or 0.0,
        return_attn_probs=True,
    )
    return emptied(outputs.view(segments, rows, head_dim), lse.view(segments, rows), lengths)
