"""The Triton kernels of LagKV over ragged segments, in float32. The reference is the score."""

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
Slots = Float[Tensor, "segments slots"]


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
    """Compute the standard deviation over the channels of each state of a partition, relative to the range of every
    channel in the next partition.
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
            x = block_of(states, start, begin, stop, dims, HEAD_DIM, BLOCK)
            least = tl.minimum(least, tl.min(tl.where(held, x, infinity), 0))
            most = tl.maximum(most, tl.max(tl.where(held, x, -infinity), 0))
        width = most - least
        varies = ((width > 0) & (dims < HEAD_DIM))[None, :]
        for begin in range(begins, following, BLOCK):
            slot = begin + tl.arange(0, BLOCK)
            x = block_of(states, start, begin, following, dims, HEAD_DIM, BLOCK)
            apart = tl.where(varies, (x - least[None, :]) / width[None, :], 0.0)
            centred = tl.where(dims[None, :] < HEAD_DIM, apart - (tl.sum(apart, 1) / HEAD_DIM)[:, None], 0.0)
            deviation = tl.sqrt(tl.sum(centred * centred, 1) / (HEAD_DIM - 1))
            place = tl.program_id(2) * plane + segment * longest + slot
            tl.store(deviations + place, deviation, mask=slot < following)


@triton.jit
def _lag_scores(
    of_keys, of_values, result, lengths, longest, sink, lag, CROSS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Write the places, or with CROSS the shares themselves, from the deviations of keys and values."""
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
    """Return a block of the deviations in the partition of each slot, [slots, BLOCK], -inf behind it; the slots of
    these, and which there are.
    """
    place = first + tl.arange(0, BLOCK)[None, :]
    inside = compared[:, None] & (place < lag)
    other = begins[:, None] + place
    key = tl.load(of_keys + row + other, mask=inside, other=float("-inf"))
    value = tl.load(of_values + row + other, mask=inside, other=float("-inf"))
    return key, value, other, inside
