"""Attention over ragged segments, one segment after the other: the truth."""

import torch
from jaxtyping import Float, Int
from torch import Tensor


def ragged_decode(
    queries: Float[Tensor, "segments rows head_dim"],
    keys: Float[Tensor, "pairs head_dim"],
    values: Float[Tensor, "pairs head_dim"],
    starts: Int[Tensor, "segments"],
    lengths: Int[Tensor, "segments"],
    scaling: float,
    softcap: float | None = None,
) -> tuple[Float[Tensor, "segments rows head_dim"], Float[Tensor, "segments rows"]]:
    """Outputs and log-sum-exp of rows over the pairs `starts : starts + lengths` of their segment, all of them older
    than every row; in float32 or wider. An empty segment gives 0 and -inf, which `merged` with another part leaves out.
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
    """One softmax over parts that were each normalised alone; rows that saw nothing in any part give 0 and -inf."""
    total = lse.logsumexp(dim=0)
    shares = torch.where(total == -torch.inf, torch.zeros_like(lse), (lse - total).exp())
    return (shares[..., None] * outputs).sum(dim=0), total
