"""Triton kernels that finish scores over ragged segments: norms of values, CAOTE, KeyDiff, and the redundancy of R-KV.

Everything is float32, shares of CAOTE float64. The references are the scores themselves, over heads of one length. A
result has a number per slot of every segment; those behind its pairs mean nothing unless a function says so.
"""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from kvbench.cache.kernels.ragged_decode import FlatPairs, Segments

BLOCK = 32
"""Pairs that a program holds."""
Slots = Float[Tensor, "segments slots"]


def value_norms(values: FlatPairs, segments: Segments, power: int, largest: int | None = None) -> Slots:
    """The L1 or L2 norm of every value; with `largest` the largest of a segment without that many of its newest pairs,
    [segments, 1].
    """
    count, head_dim = len(segments.starts), values.shape[1]
    shape = (count, 1 if largest is not None else segments.longest)
    norms = torch.empty(shape, dtype=torch.float32, device=values.device)
    blocks = 1 if largest is not None else triton.cdiv(segments.longest, BLOCK)
    with torch.cuda.device_of(values):
        _value_norms[(count, blocks)](
            values, norms, segments.starts, segments.lengths, segments.longest, largest or 0, SQUARED=power == 2,
            LARGEST=largest is not None, HEAD_DIM=head_dim, PADDED_DIM=triton.next_power_of_2(head_dim), BLOCK=BLOCK,
        )  # fmt: skip
    return norms


@triton.jit
def _value_norms(
    values, norms, starts, lengths, longest, newest, SQUARED: tl.constexpr, LARGEST: tl.constexpr,
    HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    segment = tl.program_id(0).to(tl.int64)
    start, length = tl.load(starts + segment), tl.load(lengths + segment)
    dims = tl.arange(0, PADDED_DIM)
    stop = length - newest if LARGEST else tl.program_id(1) * BLOCK + 1
    most = 0.0
    for begin in range(tl.program_id(1) * BLOCK, stop, BLOCK):
        slot = begin + tl.arange(0, BLOCK)
        inside = (slot[:, None] < length) & (dims[None, :] < HEAD_DIM)
        v = tl.load(values + (start + slot[:, None]) * HEAD_DIM + dims[None, :], mask=inside, other=0.0).to(tl.float32)
        norm = tl.sqrt(tl.sum(v * v, 1)) if SQUARED else tl.sum(tl.abs(v), 1)
        if LARGEST:
            most = tl.maximum(most, tl.max(tl.where(slot < stop, norm, 0.0), 0))
        else:
            tl.store(norms + segment * longest + slot, norm, mask=slot < longest)
    if LARGEST:
        tl.store(norms + segment, most)


def caote(host: Slots, values: FlatPairs, segments: Segments, squared: bool, fast: bool, resolved: float) -> Slots:
    """CAOTE of every pair from the scores of its host; `fast`: FastCAOTE."""
    count, head_dim = len(segments.starts), values.shape[1]
    result = torch.empty(host.shape, dtype=torch.float32, device=values.device)
    with torch.cuda.device_of(values):
        _caote[(count,)](
            host.contiguous(), values, result, segments.starts, segments.lengths, segments.longest, resolved,
            SQUARED=squared, FAST=fast, HEAD_DIM=head_dim, PADDED_DIM=triton.next_power_of_2(head_dim), BLOCK=BLOCK,
        )  # fmt: skip
    return result


@triton.jit
def _caote(
    host, values, result, starts, lengths, longest, resolved, SQUARED: tl.constexpr, FAST: tl.constexpr,
    HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    segment = tl.program_id(0).to(tl.int64)
    start, length = tl.load(starts + segment), tl.load(lengths + segment)
    row, dims = segment * longest, tl.arange(0, PADDED_DIM)
    mass = tl.zeros([BLOCK], tl.float64)
    for begin in range(0, length, BLOCK):
        slot = begin + tl.arange(0, BLOCK)
        mass += tl.load(host + row + slot, mask=slot < length, other=0.0).to(tl.float64)
    total = tl.sum(mass, 0)
    bounded = tl.where(total > 0, total, 1.0)
    centre, furthest = tl.zeros([PADDED_DIM], tl.float32), 0.0
    for begin in range(0, length, BLOCK):
        slot = begin + tl.arange(0, BLOCK)
        held = slot < length
        inside = held[:, None] & (dims[None, :] < HEAD_DIM)
        v = tl.load(values + (start + slot[:, None]) * HEAD_DIM + dims[None, :], mask=inside, other=0.0).to(tl.float32)
        furthest = tl.maximum(furthest, tl.max(tl.sum(v * v, 1), 0))
        if FAST:
            centre += tl.sum(v, 0) / length
        else:
            h = tl.load(host + row + slot, mask=held, other=0.0).to(tl.float64)
            share = tl.where(total > 0, h / bounded, 0.0).to(tl.float32)
            centre += tl.sum(v * share[:, None], 0)
    for begin in range(0, length, BLOCK):
        slot = begin + tl.arange(0, BLOCK)
        held = slot < length
        inside = held[:, None] & (dims[None, :] < HEAD_DIM)
        v = tl.load(values + (start + slot[:, None]) * HEAD_DIM + dims[None, :], mask=inside, other=0.0).to(tl.float32)
        moved = tl.where(inside, v - centre[None, :], 0.0)
        distance = tl.sqrt(tl.sum(moved * moved, 1))
        bound = tl.sqrt(tl.sum(v * v, 1)) + tl.sqrt(furthest)
        if SQUARED:
            distance, bound = distance * distance, bound * bound
        h = tl.load(host + row + slot, mask=held, other=0.0).to(tl.float64)
        share = tl.where(total > 0, h / bounded, 0.0)
        left = tl.where(total > 0, (total - h) / bounded, 1.0)
        change = share / tl.maximum(left, resolved) * distance.to(tl.float64)
        change = tl.where(left < resolved, tl.maximum(change, bound.to(tl.float64)), change)
        tl.store(result + row + slot, change.to(tl.float32), mask=held)


def key_diff(keys: FlatPairs, segments: Segments) -> Slots:
    """-cos of every key and the mean direction of its segment."""
    count, head_dim = len(segments.starts), keys.shape[1]
    result = torch.empty(count, segments.longest, dtype=torch.float32, device=keys.device)
    with torch.cuda.device_of(keys):
        _key_diff[(count,)](
            keys, result, segments.starts, segments.lengths, segments.longest,
            HEAD_DIM=head_dim, PADDED_DIM=triton.next_power_of_2(head_dim), BLOCK=BLOCK,
        )  # fmt: skip
    return result


@triton.jit
def _key_diff(
    keys, result, starts, lengths, longest, HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    segment = tl.program_id(0).to(tl.int64)
    start, length = tl.load(starts + segment), tl.load(lengths + segment)
    dims = tl.arange(0, PADDED_DIM)
    centre = tl.zeros([PADDED_DIM], tl.float32)
    for begin in range(0, length, BLOCK):
        centre += tl.sum(_directions(keys, start, begin, length, dims, HEAD_DIM, BLOCK), 0) / length
    centre = centre / tl.maximum(tl.sqrt(tl.sum(centre * centre, 0)), 1e-12)
    for begin in range(0, length, BLOCK):
        slot = begin + tl.arange(0, BLOCK)
        cosine = tl.sum(_directions(keys, start, begin, length, dims, HEAD_DIM, BLOCK) * centre[None, :], 1)
        tl.store(result + segment * longest + slot, -cosine, mask=slot < length)


@triton.jit
def _directions(keys, start, begin, length, dims, HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr):
    """A block of keys over their norms; 0 behind the pairs of a segment."""
    slot = begin + tl.arange(0, BLOCK)
    inside = (slot[:, None] < length) & (dims[None, :] < HEAD_DIM)
    k = tl.load(keys + (start + slot[:, None]) * HEAD_DIM + dims[None, :], mask=inside, other=0.0).to(tl.float32)
    return k / tl.maximum(tl.sqrt(tl.sum(k * k, 1)), 1e-12)[:, None]


def redundancy(keys: FlatPairs, segments: Segments, threshold: float, first: bool) -> Slots:
    """The mean over all keys i of S_ij of R-KV, before its softmax; -inf behind the pairs of a segment."""
    count, head_dim = len(segments.starts), keys.shape[1]
    newest = torch.empty(count, segments.longest, dtype=torch.int32, device=keys.device)
    result = torch.empty(count, segments.longest, dtype=torch.float32, device=keys.device)
    padded, block = max(16, triton.next_power_of_2(head_dim)), BLOCK if head_dim <= 128 else BLOCK // 2
    sizes = {"HEAD_DIM": head_dim, "PADDED_DIM": padded, "BLOCK": block}
    grid, bounds = (count, triton.cdiv(segments.longest, block)), (segments.starts, segments.lengths, segments.longest)
    with torch.cuda.device_of(keys):
        _newest_alike[grid](keys, newest, *bounds, threshold, FIRST=first, **sizes)
        _redundancy[grid](keys, newest, result, *bounds, **sizes)
    return result


@triton.jit
def _newest_alike(
    keys, newest, starts, lengths, longest, threshold, FIRST: tl.constexpr, HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    segment = tl.program_id(0).to(tl.int64)
    start, length = tl.load(starts + segment), tl.load(lengths + segment)
    first = tl.program_id(1) * BLOCK
    if first < length:
        dims, row = tl.arange(0, PADDED_DIM), first + tl.arange(0, BLOCK)
        mine = _directions(keys, start, first, length, dims, HEAD_DIM, BLOCK)
        last = tl.full([BLOCK], 0 if FIRST else -1, tl.int32)
        for begin in range(0, length, BLOCK):
            column = begin + tl.arange(0, BLOCK)
            other = _directions(keys, start, begin, length, dims, HEAD_DIM, BLOCK)
            cosine = tl.dot(other, tl.trans(mine), input_precision="ieee")
            cosine = tl.where(column[:, None] == row[None, :], 0.0, cosine)
            alike = (cosine > threshold) & (column[:, None] < length)
            last = tl.maximum(last, tl.max(tl.where(alike, column[:, None], -1), 0))
        tl.store(newest + segment * longest + row, last, mask=row < length)


@triton.jit
def _redundancy(
    keys, newest, result, starts, lengths, longest, HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr,
    BLOCK: tl.constexpr
):  # fmt: skip
    segment = tl.program_id(0).to(tl.int64)
    start, length = tl.load(starts + segment), tl.load(lengths + segment)
    first = tl.program_id(1) * BLOCK
    dims, column = tl.arange(0, PADDED_DIM), first + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    if first < length:
        mine = _directions(keys, start, first, length, dims, HEAD_DIM, BLOCK)
        for begin in range(0, length, BLOCK):
            row = begin + tl.arange(0, BLOCK)
            other = _directions(keys, start, begin, length, dims, HEAD_DIM, BLOCK)
            alike = tl.load(newest + segment * longest + row, mask=row < length, other=-1)
            cosine = tl.dot(other, tl.trans(mine), input_precision="ieee")
            skipped = (row[:, None] == column[None, :]) | (alike[:, None] == column[None, :])
            total += tl.sum(tl.where(skipped, 0.0, cosine), 0)
    mean = tl.where(column < length, total / length, float("-inf"))
    tl.store(result + segment * longest + column, mean, mask=column < longest)
