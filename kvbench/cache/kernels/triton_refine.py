"""Triton kernels that finish scores over ragged segments: pools, and what is more than a sum.

Everything is float32, shares of CAOTE float64. The references are the scores themselves, over heads of one length. A
result has a number per slot of every segment; those behind its pairs mean nothing unless a function says so. `out` is
where the result goes, which may be the scores that it is made of.
"""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false
from typing import Literal

import torch
import triton
import triton.language as tl
from jaxtyping import Complex, Float, Int
from torch import Tensor

from kvbench.cache.kernels.ragged_decode import FlatPairs, PerSegment, Segments

BLOCK = 32
"""Pairs that a program holds."""
LONG_BLOCK = 1024
"""Slots whose numbers a program holds, without their pairs."""
TINY = tl.constexpr(torch.finfo(torch.float32).tiny)
"""The least number that a sum is divided by."""
Leverage = Literal["key", "value", "kv_avg", "kv_product"]
Slots = Float[Tensor, "segments slots"]
PerSlot = Int[Tensor, "segments slots"]
Planes = Float[Tensor, "planes segments slots"]


def pooled(
    scores: Slots, order: PerSlot | None, lengths: PerSegment, apart: PerSegment, sizes: PerSegment, means: PerSegment
) -> Float[Tensor, "2 segments slots"]:
    """Scores pooled over `sizes` neighbours, without those of the last `apart` pairs of a segment, and as they are.

    order: the slots of each segment in the order of neighbours, which pooled scores have too; None: they are in it.
    means: 1 for the mean, in which neighbours that do not exist count 0; 0 for the maximum. Slots whose pairs are
    `apart` have any number.
    """
    count, longest = scores.shape
    planes = torch.empty(2, count, longest, dtype=torch.float32, device=scores.device)
    with torch.cuda.device_of(scores):
        _pooled[(count, triton.cdiv(longest, LONG_BLOCK))](
            scores, scores if order is None else order, planes, lengths, apart, sizes, means, longest,
            planes.stride(0), ORDERED=order is not None, BLOCK=LONG_BLOCK,
        )  # fmt: skip
    return planes


@triton.jit
def _pooled(
    scores, order, planes, lengths, apart, sizes, means, longest, plane, ORDERED: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    segment = tl.program_id(0).to(tl.int64)
    row, stop = segment * longest, tl.load(lengths + segment) - tl.load(apart + segment)
    size, averages = tl.load(sizes + segment), tl.load(means + segment) != 0
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    nothing = tl.where(averages, 0.0, float("-inf"))
    result = tl.zeros([BLOCK], tl.float32) + nothing
    for offset in range(-(size // 2), size // 2 + 1):
        place = column + offset
        exists = (place >= 0) & (place < stop)
        if ORDERED:
            place = tl.load(order + row + place, mask=exists, other=0)
        score = tl.load(scores + row + place, mask=exists, other=0.0)
        score = tl.where(exists, score, nothing)
        larger = tl.where((score > result) | (score != score), score, result)  # NaN stays
        result = tl.where(averages, result + score, larger)
    result = tl.where(averages, result / size, result)
    inside = column < longest
    tl.store(planes + row + column, result, mask=inside)
    tl.store(planes + plane + row + column, tl.load(scores + row + column, mask=inside), mask=inside)


def weighed(
    scores: Planes | None, states: FlatPairs, segments: Segments, power: int, largest: int | None, out: Planes
) -> Planes:
    """`out`: scores (None: -1) times the L1 or L2 norm of every key or value, plane by plane; with `largest` times the
    largest one of a segment without that many of its newest pairs.
    """
    (planes, count, longest), head_dim = out.shape, states.shape[1]
    given = out if scores is None else scores
    blocks = 1 if largest is not None else triton.cdiv(longest, BLOCK)
    with torch.cuda.device_of(states):
        _weighed[(count, blocks)](
            given, states, out, segments.starts, segments.lengths, longest, given.stride(0), out.stride(0),
            largest or 0, GIVEN=scores is not None, PLANES=planes, SQUARED=power == 2, LARGEST=largest is not None,
            HEAD_DIM=head_dim, PADDED_DIM=triton.next_power_of_2(head_dim), BLOCK=BLOCK,
        )  # fmt: skip
    return out


@triton.jit
def _weighed(
    scores, states, out, starts, lengths, longest, plane, out_plane, newest, GIVEN: tl.constexpr,
    PLANES: tl.constexpr, SQUARED: tl.constexpr, LARGEST: tl.constexpr, HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    segment = tl.program_id(0).to(tl.int64)
    start, length = tl.load(starts + segment), tl.load(lengths + segment)
    dims = tl.arange(0, PADDED_DIM)
    most = 0.0
    if LARGEST:
        for begin in range(0, length - newest, BLOCK):
            slot = begin + tl.arange(0, BLOCK)
            norm = _norm(_block(states, start, begin, length, dims, HEAD_DIM, BLOCK), SQUARED)
            most = tl.maximum(most, tl.max(tl.where(slot < length - newest, norm, 0.0), 0))
    first = tl.program_id(1) * BLOCK
    for begin in range(first, length if LARGEST else tl.minimum(first + 1, length), BLOCK):
        slot = begin + tl.arange(0, BLOCK)
        held = slot < length
        if LARGEST:
            weight = tl.full([BLOCK], 1.0, tl.float32) * most
        else:
            weight = _norm(_block(states, start, begin, length, dims, HEAD_DIM, BLOCK), SQUARED)
        for number in tl.static_range(PLANES):
            score = tl.full([BLOCK], -1.0, tl.float32)
            if GIVEN:
                score = tl.load(scores + number * plane + segment * longest + slot, mask=held, other=0.0)
                tl.debug_barrier()  # `out` may be the scores
            tl.store(out + number * out_plane + segment * longest + slot, score * weight, mask=held)


@triton.jit
def _norm(states, SQUARED: tl.constexpr):
    """The norm of every row."""
    if SQUARED:
        norm = tl.sqrt(tl.sum(states * states, 1))
    else:
        norm = tl.sum(tl.abs(states), 1)
    return norm


def cur(
    keys: FlatPairs, values: FlatPairs, segments: Segments, leverage: Leverage, span: int | None, sink: int
) -> Slots:
    """CurDKV of every pair, 0 behind the pairs: the share of its key or value, the product or the mean of both, in the
    squared norms of its span (None: of its segment), over the sum of the segment; 1 for first tokens.
    """
    count, head_dim, longest = len(segments.starts), keys.shape[1], segments.longest
    span = span or longest
    shares = torch.empty(2, count, longest, dtype=torch.float32, device=keys.device)
    with torch.cuda.device_of(keys):
        _leverages[(count, triton.cdiv(longest, span), 2)](
            keys, values, shares, segments.starts, segments.lengths, longest, span, shares.stride(0),
            HEAD_DIM=head_dim, PADDED_DIM=triton.next_power_of_2(head_dim), BLOCK=BLOCK,
        )  # fmt: skip
        _cur[(count,)](*shares, segments.lengths, longest, sink, LEVERAGE=leverage, BLOCK=LONG_BLOCK)
    return shares[0]


@triton.jit
def _leverages(
    keys, values, shares, starts, lengths, longest, span, plane, HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr,
    BLOCK: tl.constexpr
):  # fmt: skip
    """The squared norm of every key and value over the sum of its span; 0 behind the pairs."""
    segment, states = tl.program_id(0).to(tl.int64), keys
    if tl.program_id(2) == 1:
        states = values
    start, dims = tl.load(starts + segment), tl.arange(0, PADDED_DIM)
    first = tl.program_id(1) * span
    stop = tl.minimum(first + span, longest)
    length = tl.minimum(tl.load(lengths + segment), stop)
    row, total = shares + tl.program_id(2) * plane + segment * longest, 0.0
    for begin in range(first, length, BLOCK):
        x = _block(states, start, begin, length, dims, HEAD_DIM, BLOCK)
        total += tl.sum(tl.sum(x * x, 1), 0)
    total = tl.maximum(total, TINY)  # a span of zeros counts 0
    for begin in range(first, stop, BLOCK):
        slot = begin + tl.arange(0, BLOCK)
        x = _block(states, start, begin, length, dims, HEAD_DIM, BLOCK)
        tl.store(row + slot, tl.sum(x * x, 1) / total, mask=slot < stop)


@triton.jit
def _cur(of_keys, of_values, lengths, longest, sink, LEVERAGE: tl.constexpr, BLOCK: tl.constexpr):
    """The scores from the shares of keys and values, in place of those of keys."""
    segment = tl.program_id(0).to(tl.int64)
    row, length = segment * longest, tl.load(lengths + segment)
    total = tl.zeros([BLOCK], tl.float32)
    for begin in range(0, length, BLOCK):
        total += _joined(of_keys, of_values, row, begin, length, LEVERAGE, BLOCK)
    bounded = tl.maximum(tl.sum(total, 0), TINY)
    for begin in range(0, longest, BLOCK):
        slot = begin + tl.arange(0, BLOCK)
        score = _joined(of_keys, of_values, row, begin, length, LEVERAGE, BLOCK) / bounded
        tl.debug_barrier()  # before another thread stores there
        tl.store(of_keys + row + slot, tl.where(slot < sink, 1.0, score), mask=slot < longest)


@triton.jit
def _joined(of_keys, of_values, row, begin, length, LEVERAGE: tl.constexpr, BLOCK: tl.constexpr):
    """A block of shares as `LEVERAGE` says; 0 behind the pairs."""
    slot = begin + tl.arange(0, BLOCK)
    key = tl.load(of_keys + row + slot, mask=slot < length, other=0.0)
    value = tl.load(of_values + row + slot, mask=slot < length, other=0.0)
    if LEVERAGE == "kv_product":
        joined = key * value
    elif LEVERAGE == "kv_avg":
        joined = (key + value) / 2
    elif LEVERAGE == "key":
        joined = key
    else:
        joined = value
    return joined


def caote(
    host: Planes, values: FlatPairs, segments: Segments, squared: bool, fast: bool, resolved: float, out: Planes
) -> Planes:
    """`out`: CAOTE of every pair from the scores of its host, plane by plane; `fast`: FastCAOTE."""
    (planes, count, longest), head_dim = host.shape, values.shape[1]
    with torch.cuda.device_of(values):
        _caote[(count, planes)](
            host, values, out, segments.starts, segments.lengths, longest, host.stride(0), out.stride(0), resolved,
            SQUARED=squared, FAST=fast, HEAD_DIM=head_dim, PADDED_DIM=triton.next_power_of_2(head_dim), BLOCK=BLOCK,
        )  # fmt: skip
    return out


@triton.jit
def _caote(
    host, values, out, starts, lengths, longest, plane, out_plane, resolved, SQUARED: tl.constexpr, FAST: tl.constexpr,
    HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    segment = tl.program_id(0).to(tl.int64)
    start, length = tl.load(starts + segment), tl.load(lengths + segment)
    host += tl.program_id(1) * plane + segment * longest
    out += tl.program_id(1) * out_plane + segment * longest
    dims = tl.arange(0, PADDED_DIM)
    mass = tl.zeros([BLOCK], tl.float64)
    for begin in range(0, length, BLOCK):
        slot = begin + tl.arange(0, BLOCK)
        mass += tl.load(host + slot, mask=slot < length, other=0.0).to(tl.float64)
    total = tl.sum(mass, 0)
    bounded = tl.where(total > 0, total, 1.0)
    centre, furthest = tl.zeros([PADDED_DIM], tl.float32), 0.0
    for begin in range(0, length, BLOCK):
        slot = begin + tl.arange(0, BLOCK)
        held = slot < length
        v = _block(values, start, begin, length, dims, HEAD_DIM, BLOCK)
        furthest = tl.maximum(furthest, tl.max(tl.sum(v * v, 1), 0))
        if FAST:
            centre += tl.sum(v, 0) / length
        else:
            h = tl.load(host + slot, mask=held, other=0.0).to(tl.float64)
            share = tl.where(total > 0, h / bounded, 0.0).to(tl.float32)
            centre += tl.sum(v * share[:, None], 0)
    for begin in range(0, length, BLOCK):
        slot = begin + tl.arange(0, BLOCK)
        held = slot < length
        v = _block(values, start, begin, length, dims, HEAD_DIM, BLOCK)
        moved = tl.where(held[:, None], v - centre[None, :], 0.0)
        distance = tl.sqrt(tl.sum(moved * moved, 1))
        bound = tl.sqrt(tl.sum(v * v, 1)) + tl.sqrt(furthest)
        if SQUARED:
            distance, bound = distance * distance, bound * bound
        h = tl.load(host + slot, mask=held, other=0.0).to(tl.float64)
        share = tl.where(total > 0, h / bounded, 0.0)
        left = tl.where(total > 0, (total - h) / bounded, 1.0)
        change = share / tl.maximum(left, resolved) * distance.to(tl.float64)
        change = tl.where(left < resolved, tl.maximum(change, bound.to(tl.float64)), change)
        tl.debug_barrier()  # `out` may be the host's scores
        tl.store(out + slot, change.to(tl.float32), mask=held)


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
    k = _block(keys, start, begin, length, dims, HEAD_DIM, BLOCK)
    return k / tl.maximum(tl.sqrt(tl.sum(k * k, 1)), 1e-12)[:, None]


def lag_scores(keys: FlatPairs, values: FlatPairs, segments: Segments, sink: int, lag: int, cross: bool) -> Slots:
    """LagKV of every pair."""
    count, head_dim = len(segments.starts), keys.shape[1]
    by_kind = torch.empty(2, count, segments.longest, dtype=torch.float32, device=keys.device)
    result = torch.empty(count, segments.longest, dtype=torch.float32, device=keys.device)
    bounds, partitions = (segments.lengths, segments.longest, sink, lag), max(0, segments.longest - sink) // lag - 1
    with torch.cuda.device_of(keys):
        if partitions > 0:
            _deviations[(count, partitions, 2)](
                keys, values, by_kind, segments.starts, *bounds, by_kind.stride(0),
                HEAD_DIM=head_dim, PADDED_DIM=triton.next_power_of_2(head_dim), BLOCK=BLOCK,
            )  # fmt: skip
        _lag_scores[(count, triton.cdiv(segments.longest, BLOCK))](*by_kind, result, *bounds, CROSS=cross, BLOCK=BLOCK)
    return result


@triton.jit
def _deviations(
    keys, values, deviations, starts, lengths, longest, sink, lag, plane, HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """The standard deviation over the channels of each state of a partition, relative to the range of every channel in
    the next partition.
    """
    segment, states = tl.program_id(0).to(tl.int64), keys
    if tl.program_id(2) == 1:
        states = values
    start, begins = tl.load(starts + segment), sink + tl.program_id(1) * lag
    following, stop = begins + lag, begins + 2 * lag
    if stop <= tl.load(lengths + segment):
        dims, infinity = tl.arange(0, PADDED_DIM), float("inf")
        least, most = tl.full([PADDED_DIM], infinity, tl.float32), tl.full([PADDED_DIM], -infinity, tl.float32)
        for begin in range(following, stop, BLOCK):
            held = (begin + tl.arange(0, BLOCK) < stop)[:, None]
            x = _block(states, start, begin, stop, dims, HEAD_DIM, BLOCK)
            least = tl.minimum(least, tl.min(tl.where(held, x, infinity), 0))
            most = tl.maximum(most, tl.max(tl.where(held, x, -infinity), 0))
        width = most - least
        varies = ((width > 0) & (dims < HEAD_DIM))[None, :]
        for begin in range(begins, following, BLOCK):
            slot = begin + tl.arange(0, BLOCK)
            x = _block(states, start, begin, following, dims, HEAD_DIM, BLOCK)
            apart = tl.where(varies, (x - least[None, :]) / width[None, :], 0.0)
            centred = tl.where(dims[None, :] < HEAD_DIM, apart - (tl.sum(apart, 1) / HEAD_DIM)[:, None], 0.0)
            deviation = tl.sqrt(tl.sum(centred * centred, 1) / (HEAD_DIM - 1))
            place = tl.program_id(2) * plane + segment * longest + slot
            tl.store(deviations + place, deviation, mask=slot < following)


@triton.jit
def _lag_scores(
    of_keys, of_values, result, lengths, longest, sink, lag, CROSS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """The places, or with CROSS the shares themselves, from the deviations of keys and values."""
    segment = tl.program_id(0).to(tl.int64)
    row, length = segment * longest, tl.load(lengths + segment)
    slot = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    score = tl.where(slot < sink, 2.0, 1.0 + slot.to(tl.float32) / length)
    compared = (slot >= sink) & (slot < sink + ((length - sink) // lag - 1) * lag)
    begins = tl.where(compared, sink + (slot - sink) // lag * lag, 0)
    most_key, most_value = tl.full([BLOCK], float("-inf"), tl.float32), tl.full([BLOCK], float("-inf"), tl.float32)
    for first in range(0, lag, BLOCK):
        key, value, _, _ = _of_partition(of_keys, of_values, row, begins, first, lag, compared, BLOCK)
        most_key, most_value = tl.maximum(most_key, tl.max(key, 1)), tl.maximum(most_value, tl.max(value, 1))
    most_key, most_value = tl.where(compared, most_key, 0.0), tl.where(compared, most_value, 0.0)
    sum_key = tl.where(compared, 0.0, 1.0)
    sum_value = sum_key
    for first in range(0, lag, BLOCK):
        key, value, _, _ = _of_partition(of_keys, of_values, row, begins, first, lag, compared, BLOCK)
        sum_key += tl.sum(tl.exp(key - most_key[:, None]), 1)
        sum_value += tl.sum(tl.exp(value - most_value[:, None]), 1)
    own_key = tl.load(of_keys + row + slot, mask=compared, other=0.0)
    own_value = tl.load(of_values + row + slot, mask=compared, other=0.0)
    share = (tl.exp(own_key - most_key) / sum_key + tl.exp(own_value - most_value) / sum_value) / 2
    if not CROSS:
        place = tl.zeros([BLOCK], tl.float32)
        for first in range(0, lag, BLOCK):
            key, value, other, inside = _of_partition(of_keys, of_values, row, begins, first, lag, compared, BLOCK)
            shares = tl.exp(key - most_key[:, None]) / sum_key[:, None]
            shares = (shares + tl.exp(value - most_value[:, None]) / sum_value[:, None]) / 2
            lower = (shares < share[:, None]) | ((shares == share[:, None]) & (other < slot[:, None]))
            place += tl.sum(tl.where(inside & lower, 1.0, 0.0), 1)
        share = place / lag
    tl.store(result + row + slot, tl.where(compared, share, score), mask=slot < longest)


@triton.jit
def _of_partition(of_keys, of_values, row, begins, first, lag, compared, BLOCK: tl.constexpr):
    """A block of the deviations in the partition of each slot, [slots, BLOCK], -inf behind it; the slots of these, and
    which there are.
    """
    place = first + tl.arange(0, BLOCK)[None, :]
    inside = compared[:, None] & (place < lag)
    other = begins[:, None] + place
    key = tl.load(of_keys + row + other, mask=inside, other=float("-inf"))
    value = tl.load(of_values + row + other, mask=inside, other=float("-inf"))
    return key, value, other, inside


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


def triattention(
    keys: FlatPairs,
    segments: Segments,
    mean: Complex[Tensor, "segments group half"],
    spread: Float[Tensor, "segments group half"],
    turn: Complex[Tensor, "#segments half"],
    interleaved: bool,
    merge: Literal["mean", "max", "sum", "none"],
) -> Slots:
    """TriAttention of every pair: of each query head standardised over its segment, then merged over the group."""
    count, group, half = spread.shape
    result = torch.empty(count, segments.longest, dtype=torch.float32, device=keys.device)
    arrays = torch.view_as_real(mean), spread, torch.view_as_real(turn)
    with torch.cuda.device_of(keys):
        _triattention[(count,)](
            keys, *arrays, result, segments.starts, segments.lengths, segments.longest, 2 * half * (len(turn) > 1),
            GROUP=group, MERGE=merge, HALF=half, PADDED_HALF=triton.next_power_of_2(half), BLOCK=BLOCK,
            FIRST=2 if interleaved else 1, SECOND=1 if interleaved else half,
        )  # fmt: skip
    return result


@triton.jit
def _triattention(
    keys, mean, spread, turn, result, starts, lengths, longest, turn_row, GROUP: tl.constexpr, MERGE: tl.constexpr,
    HALF: tl.constexpr, PADDED_HALF: tl.constexpr, BLOCK: tl.constexpr, FIRST: tl.constexpr, SECOND: tl.constexpr
):  # fmt: skip
    segment = tl.program_id(0).to(tl.int64)
    first, length = keys + tl.load(starts + segment) * 2 * HALF, tl.load(lengths + segment)
    number = tl.arange(0, PADDED_HALF)
    inside, row = number < HALF, result + segment * longest
    real = tl.load(turn + segment * turn_row + 2 * number, mask=inside, other=0.0)
    imaginary = tl.load(turn + segment * turn_row + 2 * number + 1, mask=inside, other=0.0)
    for member in range(GROUP):
        of_head = (segment * GROUP + member) * HALF + number
        m_real = tl.load(mean + 2 * of_head, mask=inside, other=0.0)
        m_imaginary = tl.load(mean + 2 * of_head + 1, mask=inside, other=0.0)
        w_real, w_imaginary = m_real * real - m_imaginary * imaginary, m_real * imaginary + m_imaginary * real
        s = tl.load(spread + of_head, mask=inside, other=0.0)
        total, squares = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
        for begin in range(0, length, BLOCK):
            total += _foreseen(first, begin, length, number, w_real, w_imaginary, s, HALF, BLOCK, FIRST, SECOND)
        centre = tl.sum(total, 0) / length
        for begin in range(0, length, BLOCK):
            score = _foreseen(first, begin, length, number, w_real, w_imaginary, s, HALF, BLOCK, FIRST, SECOND)
            held = begin + tl.arange(0, BLOCK) < length
            squares += tl.where(held, (score - centre) * (score - centre), 0.0)
        deviation = tl.maximum(tl.sqrt(tl.sum(squares, 0) / length), 1e-6)
        for begin in range(0, length, BLOCK):
            slot = begin + tl.arange(0, BLOCK)
            score = _foreseen(first, begin, length, number, w_real, w_imaginary, s, HALF, BLOCK, FIRST, SECOND)
            score = (score - centre) / deviation
            before = tl.load(row + slot, mask=(slot < length) & (member > 0), other=0.0)
            if MERGE == "max":
                score = tl.where(member > 0, tl.maximum(before, score), score)
            else:
                score = before + score
            if MERGE == "mean":
                score = tl.where(member == GROUP - 1, score / GROUP, score)
            tl.debug_barrier()  # before another thread stores there
            tl.store(row + slot, score, mask=slot < length)
        tl.debug_barrier()


@triton.jit
def _foreseen(
    first, begin, length, number, w_real, w_imaginary, spread, HALF: tl.constexpr, BLOCK: tl.constexpr,
    FIRST: tl.constexpr, SECOND: tl.constexpr
):  # fmt: skip
    """The scores of a block of keys for one query head; 0 behind the pairs of a segment."""
    slot = begin + tl.arange(0, BLOCK)
    inside = (slot[:, None] < length) & (number[None, :] < HALF)
    place = first + slot[:, None] * 2 * HALF + number[None, :] * FIRST
    real = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    imaginary = tl.load(place + SECOND, mask=inside, other=0.0).to(tl.float32)
    size = tl.sqrt(real * real + imaginary * imaginary)
    return tl.sum(real * w_real[None, :] + imaginary * w_imaginary[None, :] + size * spread[None, :], 1)


@triton.jit
def _block(pairs, start, begin, length, dims, HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr):
    """A block of keys or values of a segment, [BLOCK, dims]; 0 behind its pairs and dimensions."""
    slot = begin + tl.arange(0, BLOCK)
    inside = (slot[:, None] < length) & (dims[None, :] < HEAD_DIM)
    place = (start + slot[:, None]) * HEAD_DIM + dims[None, :]
    return tl.load(pairs + place, mask=inside, other=0.0).to(tl.float32)
