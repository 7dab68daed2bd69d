"""How functions of other packages are told of segments, sequences of one head, and what they say of empty ones.

The rows of a segment all see all of its pairs, so they are tokens of a query without a causal mask. Pairs of segments
lie one after the other without gaps, as in a cache: that is how both packages are told of lengths.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor


def sequences(
    queries: Float[Tensor, "segments rows head_dim"],
    keys: Float[Tensor, "pairs head_dim"],
    values: Float[Tensor, "pairs head_dim"],
    starts: Int[Tensor, "segments"],
    lengths: Int[Tensor, "segments"],
    longest: int | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, int, int]:
    """Queries, keys and values [tokens, 1, head_dim], where the sequences of each begin and the last one ends, and the
    most tokens of one: of queries, of keys.

    `longest` spares reading `lengths` back.
    """
    segments, rows, head_dim = queries.shape
    firsts = torch.arange(segments, device=queries.device) * rows
    return (
        queries.reshape(segments * rows, 1, head_dim),
        keys[:, None],
        values[:, None],
        _bounds(firsts, rows),
        _bounds(starts, lengths[-1]),
        rows,
        int(lengths.max()) if longest is None else longest,
    )


def by_segment(
    outputs: Tensor, lse: Tensor, queries: Float[Tensor, "segments rows head_dim"], lengths: Int[Tensor, "segments"]
) -> tuple[Float[Tensor, "segments rows head_dim"], Float[Tensor, "segments rows"]]:
    """What a package says of sequences; of segments without pairs outputs of 0 and a log-sum-exp of -inf, whatever it
    says of them.
    """
    empty = (lengths == 0)[:, None]
    found = outputs.view(queries.shape).masked_fill(empty[..., None], 0)
    return found, lse.view(queries.shape[:2]).float().masked_fill(empty, -torch.inf)


def _bounds(starts: Int[Tensor, "segments"], last: Int[Tensor, ""] | int) -> Int[Tensor, "segments_and_one"]:
    """Where sequences begin and the last one ends, counted from the first: they lie side by side."""
    return torch.cat((starts, (starts[-1] + last)[None])).to(torch.int32)
