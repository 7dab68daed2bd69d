"""Ragged attention by torch's own function for sequences of different lengths, a segment a sequence of one head.

As `flash_attn.py`, without a package beside torch. It knows no soft cap.
"""

from importlib import import_module

from jaxtyping import Float, Int
from torch import Tensor

from kvbench.cache.kernels.choice import check_softcap
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

    Needs a GPU and bfloat16 or float16. `longest` spares reading `lengths` back. Raises ValueError for a soft cap.
    """
    check_softcap("varlen", softcap)
    varlen = import_module("torch.nn.attention.varlen")
    outputs, lse = varlen.varlen_attn(
        *sequences(queries, keys, values, starts, lengths, longest),
        return_aux=varlen.AuxRequest(lse=True),
        scale=scaling,
    )
    return by_segment(outputs, lse, queries, lengths)
