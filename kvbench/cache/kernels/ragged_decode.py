"""Attention of a few new tokens over segments: runs of KV pairs of different lengths, one after the other in memory.

A segment is one cache head of one cell. `ragged_decode` is the reference.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

SegmentRows = Float[Tensor, "segments rows head_dim"]
SegmentLse = Float[Tensor, "segments rows"]
FlatPairs = Float[Tensor, "pairs head_dim"]
PerSegment = Int[Tensor, "segments"]


@dataclass(frozen=True)
class Segments:
    """Where the pairs of each head lie for a kernel: at starts to starts + lengths, at most `longest` of them."""

    starts: PerSegment
    lengths: PerSegment
    longest: int


def ragged_decode(
    queries: SegmentRows,
    keys: FlatPairs,
    values: FlatPairs,
    starts: PerSegment,
    lengths: PerSegment,
    scaling: float,
    softcap: float | None = None,
) -> tuple[SegmentRows, SegmentLse]:
    """Return the reference, one segment after the other: outputs and log-sum-exp, in float32 or wider.

    The rows of a segment attend to the KV pairs `starts : starts + lengths`, all of them older than every row. An empty
    segment gives 0 and -inf, which `merged` with another part leaves out.
    """
    wide = torch.float64 if queries.dtype == torch.float64 else torch.float32
    outputs = torch.zeros(queries.shape, dtype=wide, device=queries.device)
    lse = torch.full(queries.shape[:2], -torch.inf, dtype=wide, device=queries.device)
    for segment, (start, length) in enumerate(zip(starts.tolist(), lengths.tolist(), strict=True)):
        if not length:
            continue
        pairs = slice(start, start + length)
        logits = queries[segment].to(wide) @ keys[pairs].to(wide).T * scaling
        if softcap is not None:
            logits = (logits / softcap).tanh() * softcap
        lse[segment] = logits.logsumexp(dim=-1)
        outputs[segment] = logits.softmax(dim=-1) @ values[pairs].to(wide)
    return outputs, lse


def merged(
    outputs: Float[Tensor, "parts *rows head_dim"], lse: Float[Tensor, "parts *rows"]
) -> tuple[Float[Tensor, "*rows head_dim"], Float[Tensor, "*rows"]]:
    """Return one softmax over parts that were each normalised alone; rows without any KV pair give 0 and -inf."""
    total = lse.logsumexp(dim=0)
    shares = torch.where(total == -torch.inf, torch.zeros_like(lse), (lse - total).exp())
    return (shares[..., None] * outputs).sum(dim=0), total
