"""Ragged attention by flash-attn's function for sequences of different lengths: a segment is a sequence of one head."""

from importlib import import_module

from jaxtyping import Float, Int
from torch import Tensor

from kvbench.cache.kernels.ragged_decode.sequences import by_segment, sequences


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
    outputs, lse, *_ = import_module("flash_attn").flash_attn_varlen_func(
        *sequences(queries, keys, values, starts, lengths, longest),
        softmax_scale=scaling,
        causal=False,
        softcap=softcap or 0.0,
        return_attn_probs=True,
    )
    return by_segment(outputs, lse, queries, lengths)
