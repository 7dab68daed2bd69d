"""Triton kernels that finish scores over ragged segments: norms, leverages, CAOTE, KeyDiff, LagKV, redundancy of R-KV.

Everything is float32, shares of CAOTE float64. The references are the scores themselves, over heads of one length. A
result has a number per slot of every segment; those behind its pairs mean nothing unless a function says so.
"""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false, reportCallIssue=false
import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from kvbench.cache.kernels.ragged_decode import FlatPairs, Segments

BLOCK = 32
"""Pairs that a program holds."""
Slots = Float[Tensor, "segments slots"]
Planes = Float[Tensor, "planes segments slots"]


def norms(states: FlatPairs, segments: Segments, power: int, largest: int | None = None) -> Slots:
    """The L1 or L2 norm of every key or value; with `largest` the largest of a segment without that many of its newest
    pairs, [segments, 1].
    """
    count, head_dim = len(segments.starts), states.shape[1]
    shape = (count, 1 if largest is not None else segments.longest)
    result = torch.empty(shape, dtype=torch.float32, device=states.device)
    blocks = 1 if largest is not None else triton.cdiv(segments.longest, BLOCK)
    with torch.cuda.device_of(states):
        _norms[(count, blocks)](
            states, result, segments.starts, segments.lengths, segments.longest, largest or 0, SQUARED=power == 2,
            LARGEST=largest is not None, HEAD_DIM=head_dim, PADDED_DIM=triton.next_power_of_2(head_dim), BLOCK=BLOCK,
        )  # fmt: skip
    return result


@triton.jit
def _norms(
    states, result, starts, lengths, longest, newest, SQUARED: tl.constexpr, LARGEST: tl.constexpr,
    HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    segment = tl.program_id(0).to(tl.int64)
    start, length = tl.load(starts + segment), tl.load(lengths + segment)
    dims = tl.arange(0, PADDED_DIM)
    stop = length - newest if LARGEST else tl.program_id(1) * BLOCK + 1
    most = 0.0
    for begin in range(tl.program_id(1) * BLOCK, stop, BLOCK):
        slot = begin + tl.arange(0, BLOCK)
        v = _block(states, start, begin, length, dims, HEAD_DIM, BLOCK)
        norm = tl.sqrt(tl.sum(v * v, 1)) if SQUARED else tl.sum(tl.abs(v), 1)
        if LARGEST:
            most = tl.maximum(most, tl.max(tl.where(slot < stop, norm, 0.0), 0))
        else:
            tl.store(result + segment * longest + slot, norm, mask=slot < longest)
    if LARGEST:
        tl.store(result + segment, most)


def leverages(
    keys: FlatPairs, values: FlatPairs, segments: Segments, span: int | None
) -> Float[Tensor, "2 segments slots"]:
    """The squared norm of every key and value over the sum of its span (None: of its segment); 0 behind the pairs."""
    count, head_dim, longest = len(segments.starts), keys.shape[1], segments.longest
    span = span or longest
    result = torch.empty(2, count, longest, dtype=torch.float32, device=keys.device)
    with torch.cuda.device_of(keys):
        _leverages[(count, triton.cdiv(longest, span), 2)](
            keys, values, result, segments.starts, segments.lengths, longest, span, count * longest,
            HEAD_DIM=head_dim, PADDED_DIM=triton.next_power_of_2(head_dim), BLOCK=BLOCK,
        )  # fmt: skip
    return result


@triton.jit
def _leverages(
    keys, values, result, starts, lengths, longest, span, plane, HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr,
    BLOCK: tl.constexpr
):  # fmt: skip
    segment, states = tl.program_id(0).to(tl.int64), keys
    if tl.program_id(2) == 1:
        states = values
    start, dims = tl.load(starts + segment), tl.arange(0, PADDED_DIM)
    first = tl.program_id(1) * span
    stop = tl.minimum(first + span, longest)
    length = tl.minimum(tl.load(lengths + segment), stop)
    row, total = result + tl.program_id(2) * plane + segment * longest, 0.0
    for begin in range(first, length, BLOCK):
        x = _block(states, start, begin, length, dims, HEAD_DIM, BLOCK)
        total += tl.sum(tl.sum(x * x, 1), 0)
    total = tl.maximum(total, 1.1754943508222875e-38)  # a span of zeros counts 0
    for begin in range(first, stop, BLOCK):
        slot = begin + tl.arange(0, BLOCK)
        x = _block(states, start, begin, length, dims, HEAD_DIM, BLOCK)
        tl.store(row + slot, tl.sum(x * x, 1) / total, mask=slot < stop)


def caote(host: Planes, values: FlatPairs, segments: Segments, squared: bool, fast: bool, resolved: float) -> Planes:
    """CAOTE of every pair from the scores of its host, plane by plane; `fast`: FastCAOTE."""
    planes, count, longest = host.shape
    head_dim = values.shape[1]
    result = torch.empty(host.shape, dtype=torch.float32, device=values.device)
    with torch.cuda.device_of(values):
        _caote[(count, planes)](
            host, values, result, segments.starts, segments.lengths, longest, host.stride(0), resolved,
            SQUARED=squared, FAST=fast, HEAD_DIM=head_dim, PADDED_DIM=triton.next_power_of_2(head_dim), BLOCK=BLOCK,
        )  # fmt: skip
    return result


@triton.jit
def _caote(
    host, values, result, starts, lengths, longest, plane, resolved, SQUARED: tl.constexpr, FAST: tl.constexpr,
    HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    segment = tl.program_id(0).to(tl.int64)
    start, length = tl.load(starts + segment), tl.load(lengths + segment)
    host += tl.program_id(1) * plane + segment * longest
    result += (tl.program_id(1) * tl.num_programs(0) + segment) * longest
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
        tl.store(result + slot, change.to(tl.float32), mask=held)


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
    by_kind = torch.zeros(2, count, segments.longest, dtype=torch.float32, device=keys.device)
    result = torch.empty(count, segments.longest, dtype=torch.float32, device=keys.device)
    bounds, partitions = (segments.lengths, segments.longest, sink, lag), max(0, segments.longest - sink) // lag - 1
    with torch.cuda.device_of(keys):
        for states, deviations in zip((keys, values), by_kind, strict=True) if partitions > 0 else ():
            _deviations[(count, partitions)](
                states, deviations, segments.starts, *bounds,
                HEAD_DIM=head_dim, PADDED_DIM=triton.next_power_of_2(head_dim), BLOCK=BLOCK,
            )  # fmt: skip
        _lag_scores[(count, triton.cdiv(segments.longest, BLOCK))](*by_kind, result, *bounds, CROSS=cross, BLOCK=BLOCK)
    return result


@triton.jit
def _deviations(
    states, deviations, starts, lengths, longest, sink, lag, HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr,
    BLOCK: tl.constexpr
):  # fmt: skip
    """The standard deviation over the channels of each state of a partition, relative to the range of every channel in
    the next partition.
    """
    segment = tl.program_id(0).to(tl.int64)
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
            tl.store(deviations + segment * longest + slot, deviation, mask=slot < following)


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


@triton.jit
def _block(pairs, start, begin, length, dims, HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr):
    """A block of keys or values of a segment, [BLOCK, dims]; 0 behind its pairs and dimensions."""
    slot = begin + tl.arange(0, BLOCK)
    inside = (slot[:, None] < length) & (dims[None, :] < HEAD_DIM)
    place = (start + slot[:, None]) * HEAD_DIM + dims[None, :]
    return tl.load(pairs + place, mask=inside, other=0.0).to(tl.float32)
