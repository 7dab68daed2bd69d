"""Ragged attention by torch's own function for sequences of different lengths, a segment a sequence of one head.

As `flash_attn.py`, without a package beside torch. It knows no soft cap.
"""

from importlib import import_module

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kvbench.kernels.choice import check_softcap
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

    Needs a GPU and bfloat16 or float16. `longest` spares reading `lengths` back. Raises ValueError for a soft cap.
    """
    check_softcap("varlen", softcap)
    varlen = import_module("torch.nn.attention.varlen")
    segments, rows, head_dim = queries.shape
    outputs, lse = varlen.varlen_attn(
        queries.reshape(segments * rows, 1, head_dim),
        keys[:, None],
        values[:, None],
        bounds(torch.arange(segments, device=queries.device) * rows, rows),
        bounds(starts, lengths[-1]),
        rows,
        int(lengths.max()) if longest is None else longest,
        return_aux=varlen.AuxRequest(lse=True),
        scale=scaling,
    )
    return emptied(outputs.view(segments, rows, head_dim), lse.view(segments, rows), lengths)
