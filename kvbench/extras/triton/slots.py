"""Triton kernels of slots. `append`: every segment gets a pair. `evict`: the newest pair takes the slot of the worst;
or all behind the worst move up by a slot. `reorder`: all pairs move. `turned` re-rotates keys.
"""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false
import torch
import triton
import triton.language as tl
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kvbench.cache.kernels.ragged_decode import Segments

BLOCK = 1024
"""Slots that a program looks at at a time."""
MOVED = 32
"""Pairs that a program moves at a time."""
FREE = tl.constexpr(torch.iinfo(torch.int32).max)
"""The position of a slot without a pair."""

Numbers = Float[Tensor, "segments slots"]
PerSlot = Int[Tensor, "segments slots"]
PerSegment = Int[Tensor, "segments"]
New = Float[Tensor, "cells kv_heads 1 head_dim"]


def append(
    pairs: Float[Tensor, "2 pairs head_dim"],
    numbers: Int[Tensor, "planes segments slots"],
    keys: New,
    values: New,
    order: PerSegment | None,
    segments: Segments,
    newest: Int[Tensor, "1"],
    rotated: bool,
) -> None:
    """Write the new pair of every segment to its last slot, its position `newest`, and 0 for its state.

    order: the cache heads of all cells in the order of segments; several may share the pairs of a KV head. rotated: the
    last number of a pair is its slot, as float32.
    """
    (planes, count, room), (cells, kv_heads, _, head_dim) = numbers.shape, keys.shape
    with torch.cuda.device_of(pairs):
        _append_pair[(count,)](
            pairs, numbers, keys.contiguous(), values.contiguous(), segments.starts if order is None else order,
            segments.starts, segments.lengths, newest, count // (cells * kv_heads), room, pairs.stride(0),
            numbers.stride(0), PLANES=planes, ORDERED=order is not None, ROTATED=rotated, HEAD_DIM=head_dim,
            PADDED_DIM=triton.next_power_of_2(head_dim),
        )  # fmt: skip


@triton.jit
def _append_pair(
    pairs, numbers, keys, values, order, starts, lengths, newest, copies, room, value, plane, PLANES: tl.constexpr,
    ORDERED: tl.constexpr, ROTATED: tl.constexpr, HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr
):  # fmt: skip
    segment = tl.program_id(0).to(tl.int64)
    head, slot = segment, tl.load(lengths + segment) - 1
    if ORDERED:
        head = tl.load(order + segment)
    dims = tl.arange(0, PADDED_DIM)
    inside = dims < HEAD_DIM
    source = head // copies * HEAD_DIM + dims
    target = pairs + (tl.load(starts + segment) + slot) * HEAD_DIM + dims
    tl.store(target, tl.load(keys + source, mask=inside), mask=inside)
    tl.store(target + value, tl.load(values + source, mask=inside), mask=inside)
    place = numbers + segment * room + slot
    tl.store(place, tl.load(newest))
    for number in tl.static_range(1, PLANES):
        if ROTATED and number == PLANES - 1:
            tl.store(place + number * plane, slot.to(tl.float32).to(tl.int32, bitcast=True))
        else:
            tl.store(place + number * plane, 0)


def evict(
    pairs: Float[Tensor, "2 pairs head_dim"],
    numbers: Int[Tensor, "planes segments slots"],
    scores: Float[Tensor, "pooling segments slots"],
    order: PerSlot | None,
    segments: Segments,
    capacities: PerSegment,
    sinks: PerSegment,
    recent: PerSegment,
    in_place: PerSegment,
    newest: Int[Tensor, "1"],
) -> Bool[Tensor, "segments"]:
    """Evict the worst pair of every segment that holds one more than its capacity; which ones have a score that is NaN
    or inf.

    The worst pair has the lowest score, then the lowest unpooled score, then the highest position. The first `sinks`
    slots are kept. So are the last `recent` ones, or with `in_place`, where slots are in no order, the newest `recent`
    positions, up to `newest`; the newest pair then takes the slot of the worst one.

    numbers: positions and state, which move with the pairs. scores: with and without pooling if there are two planes.
    order: the slots in the order of positions, which pooled scores are in; None: the order of slots.
    """
    (planes, count, room), head_dim = numbers.shape, pairs.shape[2]
    broken = torch.empty(count, dtype=torch.bool, device=pairs.device)
    with torch.cuda.device_of(pairs):
        _evict[(count,)](
            pairs, numbers, scores[0], scores[-1], numbers if order is None else order, segments.starts,
            segments.lengths, capacities, sinks, recent, in_place, newest, broken, room, pairs.stride(0),
            numbers.stride(0), PLANES=planes, POOLED=len(scores) > 1, ORDERED=order is not None, HEAD_DIM=head_dim,
            PADDED_DIM=triton.next_power_of_2(head_dim), BLOCK=BLOCK, MOVED=MOVED,
        )  # fmt: skip
    return broken


@triton.jit
def _evict(
    pairs, numbers, scores, unpooled, order, starts, lengths, capacities, sinks, recent, in_place, newest, broken,
    room, value, plane, PLANES: tl.constexpr, POOLED: tl.constexpr, ORDERED: tl.constexpr, HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr, BLOCK: tl.constexpr, MOVED: tl.constexpr
):  # fmt: skip
    segment = tl.program_id(0).to(tl.int64)
    row, length, takes_slot = segment * room, tl.load(lengths + segment), tl.load(in_place + segment) != 0
    first, protected = tl.load(sinks + segment), tl.load(recent + segment)
    last = tl.where(takes_slot, tl.load(newest), length - 1) - protected
    infinity = float("inf")
    lowest, second, nonfinite = infinity, infinity, 0
    for begin in range(0, length, BLOCK):
        slot, position, candidate, score = _candidates(
            begin, row, length, first, last, takes_slot, numbers, scores, order, ORDERED, BLOCK
        )
        nonfinite = tl.maximum(nonfinite, tl.max(tl.where((score < infinity) & (score > -infinity), 0, 1), 0))
        lowest = tl.minimum(lowest, tl.min(tl.where(candidate, score, infinity), 0))
    tl.store(broken + segment, nonfinite != 0)
    if length > tl.load(capacities + segment):
        if POOLED:
            for begin in range(0, length, BLOCK):
                slot, position, candidate, score = _candidates(
                    begin, row, length, first, last, takes_slot, numbers, scores, order, ORDERED, BLOCK
                )
                tied = candidate & (score == lowest)
                plain = tl.load(unpooled + row + slot, mask=tied, other=0.0)
                second = tl.minimum(second, tl.min(tl.where(tied, plain, infinity), 0))
        worst = tl.full([], -1, tl.int64)  # the position in the upper half, the slot in the lower one
        for begin in range(0, length, BLOCK):
            slot, position, candidate, score = _candidates(
                begin, row, length, first, last, takes_slot, numbers, scores, order, ORDERED, BLOCK
            )
            tied = candidate & (score == lowest)
            if POOLED:
                tied = tied & (tl.load(unpooled + row + slot, mask=tied, other=0.0) == second)
            worst = tl.maximum(worst, tl.max(tl.where(tied, (position.to(tl.int64) << 32) | slot, -1), 0))
        hole = tl.where(worst < 0, length - 1, (worst & 0xFFFFFFFF).to(tl.int32))
        tl.debug_barrier()  # the scores may be the state, which moves
        stop = tl.where(takes_slot, tl.minimum(hole + 1, length - 1), length - 1)
        step = tl.where(takes_slot, length - 1 - hole, 1)
        dims = tl.arange(0, PADDED_DIM)
        start = tl.load(starts + segment)
        for begin in range(hole, stop, MOVED):
            slot = begin + tl.arange(0, MOVED)
            moves = slot < stop
            inside = moves[:, None] & (dims[None, :] < HEAD_DIM)
            target = pairs + (start + slot[:, None]) * HEAD_DIM + dims[None, :]
            key = tl.load(target + step * HEAD_DIM, mask=inside)
            content = tl.load(target + value + step * HEAD_DIM, mask=inside)
            tl.debug_barrier()  # before another thread stores there
            tl.store(target, key, mask=inside)
            tl.store(target + value, content, mask=inside)
            for number in tl.static_range(PLANES):
                place = numbers + number * plane + row + slot
                later = tl.load(place + step, mask=moves)
                tl.debug_barrier()
                tl.store(place, later, mask=moves)


@triton.jit
def _candidates(
    begin, row, length, first, last, takes_slot, numbers, scores, order, ORDERED: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Return a block of slots: their numbers and positions, which may be evicted, and the scores of these, others 0."""
    column = begin + tl.arange(0, BLOCK)
    slot = column
    if ORDERED:
        slot = tl.load(order + row + column, mask=column < length, other=0)
    position = tl.load(numbers + row + slot, mask=column < length, other=0)
    candidate = (column < length) & (slot >= first) & (tl.where(takes_slot, position, slot) <= last)
    return slot, position, candidate, tl.load(scores + row + column, mask=candidate, other=0.0)


def reorder(
    pairs: Float[Tensor, "2 pairs head_dim"],
    numbers: Int[Tensor, "planes segments slots"],
    scores: Numbers,
    order: PerSlot,
    segments: Segments,
    capacities: PerSegment,
    sinks: PerSegment,
    recent: PerSegment,
    moves: PerSegment,
) -> tuple[Float[Tensor, "2 pairs head_dim"], Int[Tensor, "planes segments slots"], Bool[Tensor, "segments"]]:
    """Pairs and numbers of the first slots of each segment in `order`, as many as it may keep, the others empty; which
    segments have a score that is NaN or inf.

    order: slots from best to worst, of which protected ones are the best, oldest first. The first `sinks` slots stay in
    front, the last `recent` ones go behind all others. Segments whose `moves` is 0 keep their order.
    """
    planes, count, room = numbers.shape
    head_dim, broken = pairs.shape[2], torch.empty(count, dtype=torch.bool, device=pairs.device)
    moved = torch.empty_like(pairs), torch.empty_like(numbers)
    with torch.cuda.device_of(pairs):
        _reorder[(count, triton.cdiv(room, MOVED))](
            pairs, numbers, *moved, scores, order, segments.starts, segments.lengths, capacities, sinks, recent, moves,
            broken, room, pairs.stride(0), numbers.stride(0), order.stride(0), PLANES=planes, HEAD_DIM=head_dim,
            PADDED_DIM=triton.next_power_of_2(head_dim), BLOCK=BLOCK, MOVED=MOVED,
        )  # fmt: skip
    return *moved, broken


@triton.jit
def _reorder(
    pairs, numbers, moved_pairs, moved_numbers, scores, order, starts, lengths, capacities, sinks, recent, moves,
    broken, room, value, plane, order_row, PLANES: tl.constexpr, HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr,
    BLOCK: tl.constexpr, MOVED: tl.constexpr
):  # fmt: skip
    segment = tl.program_id(0).to(tl.int64)
    row, length = segment * room, tl.load(lengths + segment)
    keeps = tl.minimum(length, tl.load(capacities + segment))
    newest = tl.minimum(tl.load(recent + segment), length)
    first = tl.minimum(tl.load(sinks + segment), length - newest)
    if tl.program_id(1) == 0:
        nonfinite, infinity = 0, float("inf")
        for begin in range(0, length, BLOCK):
            _slot, _candidate, score = _between(begin, row, first, length - newest, scores, BLOCK)
            nonfinite = tl.maximum(nonfinite, tl.max(tl.where((score < infinity) & (score > -infinity), 0, 1), 0))
        tl.store(broken + segment, nonfinite != 0)
    slot = tl.program_id(1) * MOVED + tl.arange(0, MOVED)
    stays = slot < keeps
    rank = tl.where(slot < first, slot, tl.where(slot < keeps - newest, slot + newest, slot - keeps + newest + first))
    source = tl.load(order + segment * order_row + rank, mask=stays, other=0)
    source = tl.where(tl.load(moves + segment) != 0, source, slot)
    dims = tl.arange(0, PADDED_DIM)
    inside = stays[:, None] & (dims[None, :] < HEAD_DIM)
    start = tl.load(starts + segment)
    old = (start + source[:, None]) * HEAD_DIM + dims[None, :]
    new = (start + slot[:, None]) * HEAD_DIM + dims[None, :]
    tl.store(moved_pairs + new, tl.load(pairs + old, mask=inside), mask=inside)
    tl.store(moved_pairs + value + new, tl.load(pairs + value + old, mask=inside), mask=inside)
    for number in tl.static_range(PLANES):
        base = number * plane + row
        tl.store(moved_numbers + base + slot, tl.load(numbers + base + source, mask=stays), mask=stays)
    tl.store(moved_numbers + row + slot, FREE, mask=(slot >= keeps) & (slot < room))


@triton.jit
def _between(begin, row, first, last, scores, BLOCK: tl.constexpr):
    """Return a block of slots: their numbers, which lie from `first` to before `last`, and the scores of these, others
    0.
    """
    slot = begin + tl.arange(0, BLOCK)
    candidate = (slot >= first) & (slot < last)
    return slot, candidate, tl.load(scores + row + slot, mask=candidate, other=0.0)


def turned(
    keys: Float[Tensor, "pairs head_dim"],
    rotated: Numbers,
    turns: PerSegment,
    segments: Segments,
    frequencies: Float[Tensor, "half"],
    interleaved: bool,
) -> Float[Tensor, "pairs head_dim"]:
    """Keys that were rotated by the positions `rotated`, as if rotated by their slots, as `KeyRotation.turn` does; as
    they are in segments whose `turns` is 0.
    """
    (count, room), half, head_dim = rotated.shape, len(frequencies), keys.shape[1]
    shown = torch.empty_like(keys)
    with torch.cuda.device_of(keys):
        _turned[(count, triton.cdiv(room, MOVED))](
            keys, shown, rotated, turns, frequencies, segments.starts, segments.lengths, room, half,
            FIRST=2 if interleaved else 1, SECOND=1 if interleaved else half,
            HEAD_DIM=head_dim, PADDED_HALF=triton.next_power_of_2(max(half, head_dim - 2 * half)), MOVED=MOVED,
            num_warps=16,  # of four warps a thread has more sines than registers
        )  # fmt: skip
    return shown


@triton.jit
def _turned(
    keys, shown, rotated, turns, frequencies, starts, lengths, room, half, FIRST: tl.constexpr, SECOND: tl.constexpr,
    HEAD_DIM: tl.constexpr, PADDED_HALF: tl.constexpr, MOVED: tl.constexpr
):  # fmt: skip
    segment = tl.program_id(0).to(tl.int64)
    slot = tl.program_id(1) * MOVED + tl.arange(0, MOVED)
    held = slot < tl.load(lengths + segment)
    place = (tl.load(starts + segment) + slot[:, None]) * HEAD_DIM
    number = tl.arange(0, PADDED_HALF)
    inside = held[:, None] & (number[None, :] < half)
    first, second = place + number[None, :] * FIRST, place + number[None, :] * FIRST + SECOND
    stored = tl.load(keys + first, mask=inside, other=0.0)
    real, imaginary = stored.to(tl.float32), tl.load(keys + second, mask=inside, other=0.0).to(tl.float32)
    frequency = tl.load(frequencies + number, mask=number < half, other=0.0).to(tl.float32)
    after = slot.to(tl.float32)
    before = tl.load(rotated + segment * room + slot, mask=held, other=0.0)
    before = tl.where(tl.load(turns + segment) != 0, before, after)
    old, new = before[:, None] * frequency[None, :], after[:, None] * frequency[None, :]
    # cosines are rounded to the type of the keys, as the model does
    old_real, old_imaginary = tl.cos(old).to(stored.dtype).to(tl.float32), tl.sin(old).to(stored.dtype).to(tl.float32)
    new_real, new_imaginary = tl.cos(new).to(stored.dtype).to(tl.float32), tl.sin(new).to(stored.dtype).to(tl.float32)
    size = old_real * old_real + old_imaginary * old_imaginary
    ratio_real = (new_real * old_real + new_imaginary * old_imaginary) / size
    ratio_imaginary = (new_imaginary * old_real - new_real * old_imaginary) / size
    same = (before == after)[:, None]
    ratio_real, ratio_imaginary = tl.where(same, 1.0, ratio_real), tl.where(same, 0.0, ratio_imaginary)
    tl.store(shown + first, (real * ratio_real - imaginary * ratio_imaginary).to(stored.dtype), mask=inside)
    tl.store(shown + second, (real * ratio_imaginary + imaginary * ratio_real).to(stored.dtype), mask=inside)
    if 2 * half < HEAD_DIM:  # the numbers that are not rotated
        rest = 2 * half + number
        beyond = held[:, None] & (rest[None, :] < HEAD_DIM)
        tl.store(shown + place + rest[None, :], tl.load(keys + place + rest[None, :], mask=beyond), mask=beyond)
