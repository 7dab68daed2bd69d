"""Attention of a few new tokens over segments: runs of KV pairs of different lengths, one after the other in memory.

A segment is one cache head of one cell. `ragged_decode` is the reference; `flash_attn` and `varlen` call functions of
other packages for sequences of different lengths.
"""

from dataclasses import dataclass
from importlib import import_module

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kvbench.support.errors import UserError

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


def check_softcap(kernels: str, softcap: float | None) -> None:
    """Raise UserError for kernels that cannot soft-cap logits, where the model does."""
    if kernels == "varlen" and softcap is not None:
        raise UserError(f"model.kernels=varlen does not support a soft cap, here {softcap}: use model.kernels=null")


def merged(
    outputs: Float[Tensor, "parts *rows head_dim"], lse: Float[Tensor, "parts *rows"]
) -> tuple[Float[Tensor, "*rows head_dim"], Float[Tensor, "*rows"]]:
    """Return one softmax over parts that were each normalised alone; rows without any KV pair give 0 and -inf."""
    total = lse.logsumexp(dim=0)
    shares = torch.where(total == -torch.inf, torch.zeros_like(lse), (lse - total).exp())
    return (shares[..., None] * outputs).sum(dim=0), total


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
