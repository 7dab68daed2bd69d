"""Triton kernels for the tail of a decode batch: the tokens read since the prompt, behind the prefix of each segment.

How many there are is read on the device (`past`), so that a step is launched in the same way whatever its number, and
can be replayed by a CUDA graph. Tails are written by a kernel of ours: torch's `index_copy_` sorts its indices first
where deterministic algorithms are on.
"""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

from kvbench.cache.kernels.ragged_decode import SegmentLse, SegmentRows
from kvbench.extras.triton.programs import HALF, INTERPRETED, WIDE, compiled_sizes, logits, softmax_step

Tail = Float[Tensor, "segments room head_dim"]
New = Float[Tensor, "cells kv_heads new head_dim"]


def append(tail_keys: Tail, tail_values: Tail, keys: New, values: New, past: Int[Tensor, ""], first: int = 0) -> None:
    """Write new pairs of every segment behind the `past` tokens that follow its first `first` pairs.

    Segments are in the order of cells and cache heads; several cache heads may share the pairs of a KV head.
    """
    segments, room, head_dim = tail_keys.shape
    cells, kv_heads, new, _ = keys.shape
    keys, values = (part if part.stride(3) == 1 else part.contiguous() for part in (keys, values))
    with torch.cuda.device_of(keys):
        _append[(segments, new)](
            tail_keys, tail_values, keys, values, past, first, room * head_dim, segments // (cells * kv_heads),
            kv_heads, *keys.stride()[:3], *values.stride()[:3],
            HEAD_DIM=head_dim, PADDED_DIM=triton.next_power_of_2(head_dim),
        )  # fmt: skip


@triton.jit
def _append(
    tail_keys, tail_values, keys, values, past, first, segment_size, copies, kv_heads,
    key_cell, key_head, key_token, value_cell, value_head, value_token,
    HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr
):  # fmt: skip
    segment, token = tl.program_id(0).to(tl.int64), tl.program_id(1)
    cell, head = segment // copies // kv_heads, segment // copies % kv_heads
    dims = tl.arange(0, PADDED_DIM)
    inside = dims < HEAD_DIM
    target = segment * segment_size + (first + tl.load(past) + token) * HEAD_DIM + dims
    key = tl.load(keys + cell * key_cell + head * key_head + token * key_token + dims, mask=inside)
    tl.store(tail_keys + target, key, mask=inside)
    value = tl.load(values + cell * value_cell + head * value_head + token * value_token + dims, mask=inside)
    tl.store(tail_values + target, value, mask=inside)


def with_tail(
    rows: SegmentRows,
    outputs: SegmentRows,
    lse: SegmentLse,
    tail_keys: Tail,
    tail_values: Tail,
    past: Int[Tensor, ""],
    new: int,
    scaling: float,
    softcap: float | None = None,
    sinks: Float[Tensor, "heads"] | None = None,
) -> SegmentRows:
    """Return one softmax over the prefixes, whose outputs and log-sum-exp are given, and the tails, in the dtype of
    `rows`.

    The rows of a segment are the `new` newest tokens of each of its query heads; each attends to the tail up to itself.
    `sinks`: one learned extra logit per query head.
    """
    segments, num_rows, _ = rows.shape
    rows, joined = rows.contiguous(), torch.empty_like(rows, memory_format=torch.contiguous_format)
    cache_heads = 1 if sinks is None else len(sinks) * new // num_rows
    shape = compiled_sizes(rows)
    with torch.cuda.device_of(rows):
        _with_tail[(segments, triton.cdiv(num_rows, shape["ROWS"]))](
            rows, outputs, lse, tail_keys, tail_values, past, lse if sinks is None else sinks, joined,
            num_rows, tail_keys.shape[1], new, cache_heads, scaling, softcap or 0.0,
            CAPPED=softcap is not None, SINKS=sinks is not None, UPCAST=INTERPRETED,
            **shape, **(WIDE if rows.dtype == torch.float32 else HALF),
        )  # fmt: skip
    return joined


@triton.jit
def _with_tail(
    queries, prefix, prefix_lse, tail_keys, tail_values, past, sinks, joined,
    rows, room, new, cache_heads, scaling, softcap, CAPPED: tl.constexpr, SINKS: tl.constexpr, UPCAST: tl.constexpr,
    BLOCK: tl.constexpr, HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr, ROWS: tl.constexpr
):  # fmt: skip
    segment = tl.program_id(0).to(tl.int64)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    dims = tl.arange(0, PADDED_DIM)
    places = (segment * rows + row[:, None]) * HEAD_DIM + dims[None, :]
    row_mask = (row[:, None] < rows) & (dims[None, :] < HEAD_DIM)
    q = tl.load(queries + places, mask=row_mask, other=0.0)
    total = tl.load(prefix + places, mask=row_mask, other=0.0)
    top = tl.load(prefix_lse + segment * rows + row, mask=row < rows, other=0.0)
    mass = tl.where(top == float("-inf"), 0.0, 1.0)
    read = tl.load(past).to(tl.int32)
    for begin in range(0, read + new, BLOCK):
        pair = begin + tl.arange(0, BLOCK)
        pair_mask = (pair[:, None] < read + new) & (dims[None, :] < HEAD_DIM)
        index = (segment * room + pair[:, None]) * HEAD_DIM + dims[None, :]
        k = tl.load(tail_keys + index, mask=pair_mask, other=0.0)
        v = tl.load(tail_values + index, mask=pair_mask, other=0.0)
        z = logits(q, tl.trans(k), scaling, softcap, CAPPED, UPCAST)
        z = tl.where(pair[None, :] <= read + (row % new)[:, None], z, float("-inf"))
        top, mass, total = softmax_step(top, mass, total, z, v, UPCAST)
    if SINKS:
        head = segment % cache_heads * (rows // new) + row // new
        sink = tl.load(sinks + head, mask=row < rows, other=0.0).to(tl.float32)
        new_top = tl.maximum(top, sink)
        shrink = tl.exp(top - new_top)
        mass = mass * shrink + tl.exp(sink - new_top)
        total = total * shrink[:, None]
    tl.store(joined + places, (total / mass[:, None]).to(q.dtype), mask=row_mask)
