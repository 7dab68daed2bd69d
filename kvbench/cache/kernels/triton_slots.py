"""A Triton kernel that evicts from segments: the newest pair of a full one takes the slot of its worst pair."""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
import torch
import triton
import triton.language as tl
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kvbench.cache.kernels.ragged_decode import Segments

BLOCK = 1024
"""Slots that a program looks at at a time."""

Numbers = Float[Tensor, "segments slots"]
PerSlot = Int[Tensor, "segments slots"]
PerSegment = Int[Tensor, "segments"]


def evict(
    pairs: Float[Tensor, "2 pairs head_dim"],
    positions: PerSlot,
    state: Numbers | None,
    scores: Numbers,
    pooled: tuple[Numbers, PerSlot] | None,
    segments: Segments,
    capacities: PerSegment,
    recent: PerSegment,
    sinks: int,
    newest: Int[Tensor, "_ 1 1"],
) -> Bool[Tensor, "segments"]:
    """Evict from every segment that holds more than its capacity; which ones have a score that is NaN or inf.

    The worst pair has the lowest pooled score, then the lowest score, then the highest position. The first `sinks`
    slots and the newest `recent` positions, up to `newest`, are kept. The last slot is free then, and has the position
    of the next token and a running score of 0. pooled: in the order of positions, and the slots
    in this order; None: the scores themselves.
    """
    room, head_dim = positions.shape[1], pairs.shape[2]
    broken = torch.empty(len(positions), dtype=torch.bool, device=pairs.device)
    ranked, order = (scores, positions) if pooled is None else pooled
    with torch.cuda.device_of(pairs):
        _evict[(len(positions),)](
            pairs, positions, positions if state is None else state, scores, ranked, order, segments.starts,
            segments.lengths, capacities, recent, newest, broken, room, sinks, pairs.stride(0),
            STATE=state is not None, POOLED=pooled is not None,
            HEAD_DIM=head_dim, PADDED_DIM=triton.next_power_of_2(head_dim), BLOCK=BLOCK,
        )  # fmt: skip
    return broken


@triton.jit
def _evict(
    pairs, positions, state, scores, ranked, order, starts, lengths, capacities, recent, newest, broken,
    room, sinks, value, STATE: tl.constexpr, POOLED: tl.constexpr,
    HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    segment = tl.program_id(0).to(tl.int64)
    row, length = segment * room, tl.load(lengths + segment)
    last = tl.load(newest).to(tl.int32) - tl.load(recent + segment).to(tl.int32)
    infinity = float("inf")
    lowest, second, wrong = infinity, infinity, 0
    for begin in range(0, length, BLOCK):
        slot, candidate, score, rank = _slots(
            begin, row, length, sinks, last, positions, scores, ranked, order, POOLED, BLOCK
        )
        wrong = tl.maximum(wrong, tl.max(tl.where((score < infinity) & (score > -infinity), 0, 1), 0))
        lowest = tl.minimum(lowest, tl.min(tl.where(candidate, rank, infinity), 0))
    tl.store(broken + segment, wrong != 0)
    if length > tl.load(capacities + segment):
        if POOLED:
            for begin in range(0, length, BLOCK):
                slot, candidate, score, rank = _slots(
                    begin, row, length, sinks, last, positions, scores, ranked, order, POOLED, BLOCK
                )
                second = tl.minimum(second, tl.min(tl.where(candidate & (rank == lowest), score, infinity), 0))
        best = tl.full([], -1, tl.int64)  # the position in the upper half, the slot in the lower one
        for begin in range(0, length, BLOCK):
            slot, candidate, score, rank = _slots(
                begin, row, length, sinks, last, positions, scores, ranked, order, POOLED, BLOCK
            )
            worst = candidate & (rank == lowest)
            if POOLED:
                worst = worst & (score == second)
            position = tl.load(positions + row + slot, mask=worst, other=0).to(tl.int64)
            best = tl.maximum(best, tl.max(tl.where(worst, (position << 32) | slot, -1), 0))
        hole = tl.where(best < 0, length - 1, best & 0xFFFFFFFF)
        dims = tl.arange(0, PADDED_DIM)
        inside = dims < HEAD_DIM
        start = tl.load(starts + segment)
        source, target = pairs + (start + length - 1) * HEAD_DIM + dims, pairs + (start + hole) * HEAD_DIM + dims
        tl.store(target, tl.load(source, mask=inside), mask=inside)
        tl.store(target + value, tl.load(source + value, mask=inside), mask=inside)
        tl.store(positions + row + hole, tl.load(newest))
        tl.store(positions + row + length - 1, tl.load(newest) + 1)
        if STATE:
            tl.store(state + row + hole, tl.load(state + row + length - 1))
            tl.store(state + row + length - 1, 0.0)


@triton.jit
def _slots(
    begin, row, length, sinks, last, positions, scores, ranked, order, POOLED: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """A block of slots: their numbers, which may be evicted, and their scores, unpooled and pooled."""
    column = begin + tl.arange(0, BLOCK)
    inside = column < length
    slot = column.to(tl.int64)
    if POOLED:
        slot = tl.load(order + row + column, mask=inside, other=0)
    score = tl.load(scores + row + slot, mask=inside, other=0.0)
    rank = score
    if POOLED:
        rank = tl.load(ranked + row + column, mask=inside, other=0.0)
    position = tl.load(positions + row + slot, mask=inside, other=0)
    return slot, inside & (slot >= sinks) & (position <= last), score, rank
