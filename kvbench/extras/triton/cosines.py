"""Triton kernels of scores made of cosines of keys over ragged segments, in float32: KeyDiff and R-KV.

The references are the scores. A result has a number per slot of every segment; those behind its pairs mean nothing.
"""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false
import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from kvbench.cache.kernels.ragged_decode import FlatPairs, Segments
from kvbench.extras.triton.programs import block_of

BLOCK = 32
"""Pairs that a program holds."""
LONG_BLOCK = 1024
"""Slots whose numbers a program holds, without their pairs."""
Slots = Float[Tensor, "segments slots"]
Planes = Float[Tensor, "planes segments slots"]


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
    """Return a block of keys over their norms; 0 behind the pairs of a segment."""
    k = block_of(keys, start, begin, length, dims, HEAD_DIM, BLOCK)
    return k / tl.maximum(tl.sqrt(tl.sum(k * k, 1)), 1e-12)[:, None]


def rkv(
    scores: Planes, keys: FlatPairs, segments: Segments, threshold: float, first: bool, importance: float, out: Planes
) -> Planes:
    """`out`: R-KV of every pair from its importance, plane by plane: `importance` times the score minus the rest times
    the softmax over the keys j of the mean over all keys i of S_ij.
    """
    (planes, count, longest), head_dim = scores.shape, keys.shape[1]
    newest = torch.empty(count, longest, dtype=torch.int32, device=keys.device)
    means = torch.empty(count, longest, dtype=torch.float32, device=keys.device)
    padded, block = max(16, triton.next_power_of_2(head_dim)), BLOCK if head_dim <= 128 else BLOCK // 2
    sizes = {"HEAD_DIM": head_dim, "PADDED_DIM": padded, "BLOCK": block}
    grid, bounds = (count, triton.cdiv(longest, block)), (segments.starts, segments.lengths, longest)
    with torch.cuda.device_of(keys):
        _newest_alike[grid](keys, newest, *bounds, threshold, FIRST=first, **sizes)
        _redundancy[grid](keys, newest, means, *bounds, **sizes)
        strides = scores.stride(0), out.stride(0)
        _rkv[(count,)](
            scores, means, out, segments.lengths, longest, *strides, importance, PLANES=planes, BLOCK=LONG_BLOCK
        )
    return out


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
    keys, newest, means, starts, lengths, longest, HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr,
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
    tl.store(means + segment * longest + column, total / length, mask=column < length)


@triton.jit
def _rkv(
    scores, means, out, lengths, longest, plane, out_plane, importance, PLANES: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    segment = tl.program_id(0).to(tl.int64)
    length, row = tl.load(lengths + segment), segment * longest
    most, mass = tl.full([BLOCK], float("-inf"), tl.float32), tl.zeros([BLOCK], tl.float32)
    for begin in range(0, length, BLOCK):
        slot = begin + tl.arange(0, BLOCK)
        most = tl.maximum(most, tl.load(means + row + slot, mask=slot < length, other=float("-inf")))
    largest = tl.max(most, 0)
    for begin in range(0, length, BLOCK):
        slot = begin + tl.arange(0, BLOCK)
        mass += tl.exp(tl.load(means + row + slot, mask=slot < length, other=float("-inf")) - largest)
    total = tl.sum(mass, 0)
    for begin in range(0, length, BLOCK):
        slot = begin + tl.arange(0, BLOCK)
        held = slot < length
        repeats = tl.exp(tl.load(means + row + slot, mask=held, other=float("-inf")) - largest) / total
        for number in tl.static_range(PLANES):
            score = tl.load(scores + number * plane + row + slot, mask=held, other=0.0)
            tl.debug_barrier()  # `out` may be the scores
            rest = importance * score - (1 - importance) * repeats
            tl.store(out + number * out_plane + row + slot, rest, mask=held)
