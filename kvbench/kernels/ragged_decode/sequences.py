"""How functions of other packages are told of segments, and what they say of empty ones."""

import torch
from jaxtyping import Float, Int
from torch import Tensor


def bounds(starts: Int[Tensor, "segments"], last: Int[Tensor, ""] | int) -> Int[Tensor, "segments_and_one"]:
    """Where sequences begin and the last one ends, counted from the first: they lie side by side."""
    return torch.cat((starts, (starts[-1] + last)[None])).to(torch.int32)


def emptied(
    outputs: Float[Tensor, "segments rows head_dim"],
    lse: Float[Tensor, "segments rows"],
    lengths: Int[Tensor, "segments"],
) -> tuple[Float[Tensor, "segments rows head_dim"], Float[Tensor, "segments rows"]]:
    """Outputs of 0 and a log-sum-exp of -inf for segments without pairs, whatever was said of them."""
    empty = (lengths == 0)[:, None]
    return outputs.masked_fill(empty[..., None], 0), lse.float().masked_fill(empty, -torch.inf)
