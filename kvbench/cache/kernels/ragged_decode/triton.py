"""Ragged attention by splits of a fixed number of pairs, so that what a segment gives does not depend on the others.

A first kernel attends with all rows of a segment, the query heads of a group times its new tokens, to one split; a
second merges the splits of a segment by their log-sum-exp, oldest first. Both accumulate in float32. Set
TRITON_INTERPRET=1 before this module is imported to run it on a CPU.
"""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

from kvbench.cache.kernels.programs import INTERPRETED, ROWS, of_heads, product, soft_capped

SPLIT = 512
"""Pairs of a split: fixed, whatever else is in the batch."""
BLOCK = 64


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
    """Outputs and log-sum-exp in float32, as `naive.ragged_decode`. `longest` spares reading `lengths` back.

    Raises ValueError for float64 and for head_dim above 256.
    """
    segments, rows, head_dim = queries.shape
    shape = of_heads(queries)
    longest = int(lengths.max()) if longest is None else longest
    splits = max(1, triton.cdiv(longest, SPLIT))
    parts = torch.empty(segments, splits, rows, head_dim, dtype=torch.float32, device=queries.device)
    part_lse = torch.empty(segments, splits, rows, dtype=torch.float32, device=queries.device)
    row_blocks = triton.cdiv(rows, ROWS)
    queries, starts, lengths = queries.contiguous(), starts.to(torch.int64), lengths.to(torch.int32)
    with torch.cuda.device_of(queries):  # layers may lie on any of several GPUs
        _over_splits[(segments, splits, row_blocks)](
            queries,
            keys,
            values,
            starts,
            lengths,
            parts,
            part_lse,
            rows,
            splits,
            scaling,
            softcap or 0.0,
            keys.stride(0),
            values.stride(0),
            CAPPED=softcap is not None,
            SPLIT=SPLIT,
            BLOCK=BLOCK,
            UPCAST=INTERPRETED,
            **shape,
        )
    outputs = torch.empty(segments, rows, head_dim, dtype=torch.float32, device=queries.device)
    lse = torch.empty(segments, rows, dtype=torch.float32, device=queries.device)
    with torch.cuda.device_of(queries):  # layers may lie on any of several GPUs
        _merge[(segments, row_blocks)](parts, part_lse, lengths, outputs, lse, rows, splits, SPLIT=SPLIT, **shape)
    return outputs, lse


@triton.jit
def _over_splits(
    queries,
    keys,
    values,
    starts,
    lengths,
    parts,
    part_lse,
    rows,
    splits,
    scaling,
    softcap,
    key_pair,
    value_pair,
    CAPPED: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK: tl.constexpr,
    UPCAST: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    ROWS: tl.constexpr,
):
    segment = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1)
    length = tl.load(lengths + segment)
    if split * SPLIT >= length:
        return
    start = tl.load(starts + segment)
    row = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    dims = tl.arange(0, PADDED_DIM)
    inside = (row[:, None] < rows) & (dims[None, :] < HEAD_DIM)
    q = tl.load(queries + (segment * rows + row[:, None]) * HEAD_DIM + dims[None, :], mask=inside, other=0.0)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    mass = tl.zeros([ROWS], tl.float32)
    total = tl.zeros([ROWS, PADDED_DIM], tl.float32)
    for begin in range(split * SPLIT, tl.minimum(length, split * SPLIT + SPLIT), BLOCK):
        pair = begin + tl.arange(0, BLOCK)
        there = (pair[:, None] < length) & (dims[None, :] < HEAD_DIM)
        place = start + pair[:, None].to(tl.int64)
        k = tl.load(keys + place * key_pair + dims[None, :], mask=there, other=0.0)
        v = tl.load(values + place * value_pair + dims[None, :], mask=there, other=0.0)
        z = product(q, tl.trans(k), UPCAST) * scaling
        if CAPPED:
            z = soft_capped(z, softcap)
        z = tl.where(pair[None, :] < length, z, float("-inf"))
        new = tl.maximum(top, tl.max(z, 1))
        shrink = tl.exp(top - new)
        p = tl.exp(z - new[:, None])
        mass = mass * shrink + tl.sum(p, 1)
        total = total * shrink[:, None] + product(p.to(v.dtype), v, UPCAST)
        top = new
    at = (segment * splits + split) * rows + row
    tl.store(parts + at[:, None] * HEAD_DIM + dims[None, :], total / mass[:, None], mask=inside)
    tl.store(part_lse + at, top + tl.log(mass), mask=row < rows)


@triton.jit
def _merge(
    parts,
    part_lse,
    lengths,
    outputs,
    lse,
    rows,
    splits,
    SPLIT: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    ROWS: tl.constexpr,
):
    segment = tl.program_id(0).to(tl.int64)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    dims = tl.arange(0, PADDED_DIM)
    inside = (row[:, None] < rows) & (dims[None, :] < HEAD_DIM)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    mass = tl.zeros([ROWS], tl.float32)
    total = tl.zeros([ROWS, PADDED_DIM], tl.float32)
    for split in range(0, (tl.load(lengths + segment) + SPLIT - 1) // SPLIT):
        at = (segment * splits + split) * rows + row
        one = tl.load(part_lse + at, mask=row < rows, other=0.0)
        part = tl.load(parts + at[:, None] * HEAD_DIM + dims[None, :], mask=inside, other=0.0)
        new = tl.maximum(top, one)
        shrink = tl.exp(top - new)
        share = tl.exp(one - new)
        mass = mass * shrink + share
        total = total * shrink[:, None] + share[:, None] * part
        top = new
    empty = mass == 0
    scale = tl.where(empty, 1.0, mass)
    at = segment * rows + row
    tl.store(outputs + at[:, None] * HEAD_DIM + dims[None, :], total / scale[:, None], mask=inside)
    tl.store(lse + at, tl.where(empty, float("-inf"), top + tl.log(scale)), mask=row < rows)
