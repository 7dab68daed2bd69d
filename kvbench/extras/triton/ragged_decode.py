"""Attention over ragged segments by two Triton kernels, in float32.

`kvbench.cache.kernels.ragged_decode` is the reference.

Splits have a fixed number of KV pairs, so that the result of a segment does not depend on the other segments. The first
kernel attends with all rows of a segment to one split; the second merges the splits of a row of it by their
log-sum-exp, 32 at a time, oldest first.
"""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false

from functools import partial

import torch
import triton
import triton.language as tl

from kvbench.cache.kernels.ragged_decode import FlatPairs, PerSegment, SegmentLse, SegmentRows
from kvbench.extras.triton.programs import (
    HALF,
    INTERPRETED,
    ROWS,
    WIDE,
    Tuned,
    compiled_sizes,
    length_class,
    logits,
    softmax_step,
)

SPLIT = 512
"""KV pairs of a split of a ragged segment: fixed, whatever else is in the batch."""
SIZES = [*({**HALF, "num_stages": stages} for stages in (3, 2, 4)), WIDE]
MERGED = 32
"""Splits of a row that are loaded and merged at a time: 16,384 pairs; their order depends on nothing else."""


def ragged_decode(
    queries: SegmentRows,
    keys: FlatPairs,
    values: FlatPairs,
    starts: PerSegment,
    lengths: PerSegment,
    scaling: float,
    softcap: float | None = None,
    longest: int | None = None,
    fine: bool = False,
) -> tuple[SegmentRows, SegmentLse]:
    """Return outputs and log-sum-exp in float32, as `ragged_decode.ragged_decode`. `longest` spares reading `lengths`
    back.

    fine: half precision weights are split into two parts, so that outputs are as precise as float32.

    Raises UserError for float64 and for head_dim above 256.
    """
    segments, rows, head_dim = queries.shape
    shape = compiled_sizes(queries)
    longest = int(lengths.max()) if longest is None else longest
    splits = max(1, triton.cdiv(longest, SPLIT))
    parts = queries.new_empty(segments, splits, rows, head_dim, dtype=torch.float32)
    part_lse = queries.new_empty(segments, splits, rows, dtype=torch.float32)
    outputs = queries.new_empty(segments, rows, head_dim, dtype=torch.float32)
    lse = queries.new_empty(segments, rows, dtype=torch.float32)
    row_blocks = triton.cdiv(rows, ROWS)
    queries, starts, lengths = queries.contiguous(), starts.to(torch.int64), lengths.to(torch.int32)
    with torch.cuda.device_of(queries):  # layers may lie on any of several GPUs
        _over_splits[(segments, splits, row_blocks)](
            queries, keys, values, starts, lengths, parts, part_lse, rows, splits, scaling, softcap or 0.0,
            keys.stride(0), values.stride(0), CAPPED=softcap is not None, SPLIT=SPLIT, UPCAST=INTERPRETED,
            FINE=fine and values.itemsize < 4, length_class=length_class(longest), **shape,
        )  # fmt: skip
        _merge[(segments, rows)](
            parts, part_lse, lengths, outputs, lse, rows, splits, SPLIT=SPLIT, AT_ONCE=MERGED,
            HEAD_DIM=head_dim, PADDED_DIM=shape["PADDED_DIM"],
        )  # fmt: skip
    return outputs, lse


@partial(Tuned, sizes=SIZES, key=["HEAD_DIM", "length_class"])
@triton.jit(do_not_specialize=["length_class"])
def _over_splits(
    queries, keys, values, starts, lengths, parts, part_lse, rows, splits, scaling, softcap, key_pair, value_pair,
    CAPPED: tl.constexpr, SPLIT: tl.constexpr, BLOCK: tl.constexpr, UPCAST: tl.constexpr, FINE: tl.constexpr,
    HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr, ROWS: tl.constexpr, length_class
):  # fmt: skip
    segment = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1)
    length = tl.load(lengths + segment)
    if split * SPLIT >= length:
        return
    start = tl.load(starts + segment)
    row = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    dims = tl.arange(0, PADDED_DIM)
    row_mask = (row[:, None] < rows) & (dims[None, :] < HEAD_DIM)
    q = tl.load(queries + (segment * rows + row[:, None]) * HEAD_DIM + dims[None, :], mask=row_mask, other=0.0)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    mass = tl.zeros([ROWS], tl.float32)
    total = tl.zeros([ROWS, PADDED_DIM], tl.float32)
    for begin in range(split * SPLIT, tl.minimum(length, split * SPLIT + SPLIT), BLOCK):
        pair = begin + tl.arange(0, BLOCK)
        pair_mask = (pair[:, None] < length) & (dims[None, :] < HEAD_DIM)
        index = start + pair[:, None].to(tl.int64)
        k = tl.load(keys + index * key_pair + dims[None, :], mask=pair_mask, other=0.0)
        v = tl.load(values + index * value_pair + dims[None, :], mask=pair_mask, other=0.0)
        z = logits(q, tl.trans(k), scaling, softcap, CAPPED, UPCAST)
        z = tl.where(pair[None, :] < length, z, float("-inf"))
        top, mass, total = softmax_step(top, mass, total, z, v, UPCAST, FINE)
    offsets = (segment * splits + split) * rows + row
    tl.store(parts + offsets[:, None] * HEAD_DIM + dims[None, :], total / mass[:, None], mask=row_mask)
    tl.store(part_lse + offsets, top + tl.log(mass), mask=row < rows)


@triton.jit
def _merge(
    parts, part_lse, lengths, outputs, lse, rows, splits,
    SPLIT: tl.constexpr, AT_ONCE: tl.constexpr, HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr
):  # fmt: skip
    segment = tl.program_id(0).to(tl.int64)
    row = segment * rows + tl.program_id(1)
    dims = tl.arange(0, PADDED_DIM)
    top = tl.full([1], float("-inf"), tl.float32)
    mass = tl.zeros([1], tl.float32)
    total = tl.zeros([PADDED_DIM], tl.float32)
    count = (tl.load(lengths + segment) + SPLIT - 1) // SPLIT
    for begin in range(0, count, AT_ONCE):
        split = begin + tl.arange(0, AT_ONCE)
        offsets = (segment * splits + split) * rows + tl.program_id(1)
        split_lse = tl.load(part_lse + offsets, mask=split < count, other=float("-inf"))
        mask = (split[:, None] < count) & (dims[None, :] < HEAD_DIM)
        part = tl.load(parts + offsets[:, None] * HEAD_DIM + dims[None, :], mask=mask, other=0.0)
        new_top = tl.maximum(top, tl.max(split_lse, 0))
        shrink = tl.exp(top - new_top)
        share = tl.exp(split_lse - new_top)
        mass = mass * shrink + tl.sum(share, 0)
        total = total * shrink + tl.sum(share[:, None] * part, 0)
        top = new_top
    empty = mass == 0
    scale = tl.where(empty, 1.0, mass)
    tl.store(outputs + row * HEAD_DIM + dims, total / scale, mask=dims < HEAD_DIM)
    tl.store(lse + row + tl.arange(0, 1), tl.where(empty, float("-inf"), top + tl.log(scale)))
