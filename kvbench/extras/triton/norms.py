"""Triton kernels of scores made of norms over ragged segments, in float32: key norm, LAVa, VATP and CurDKV.

The references are the scores. A result has a number per slot of every segment; those behind its pairs mean nothing.
"""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false
from typing import Literal

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
TINY = tl.constexpr(torch.finfo(torch.float32).tiny)
"""The least number that a sum is divided by."""
Leverage = Literal["key", "value", "kv_avg", "kv_product"]
Slots = Float[Tensor, "segments slots"]
Planes = Float[Tensor, "planes segments slots"]


def weighed(
    scores: Planes | None, states: FlatPairs, segments: Segments, power: int, largest: int | None, out: Planes
) -> Planes:
    """`out`: scores (None: -1) times the L1 or L2 norm of every key or value, plane by plane; with `largest` times the
    largest one of a segment without that many of its newest pairs.
    """
    (planes, count, longest), head_dim = out.shape, states.shape[1]
    factors = out if scores is None else scores
    blocks = 1 if largest is not None else triton.cdiv(longest, BLOCK)
    with torch.cuda.device_of(states):
        _weighed[(count, blocks)](
            factors, states, out, segments.starts, segments.lengths, longest, factors.stride(0), out.stride(0),
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
            norm = _norm(block_of(states, start, begin, length, dims, HEAD_DIM, BLOCK), SQUARED)
            most = tl.maximum(most, tl.max(tl.where(slot < length - newest, norm, 0.0), 0))
    first = tl.program_id(1) * BLOCK
    for begin in range(first, length if LARGEST else tl.minimum(first + 1, length), BLOCK):
        slot = begin + tl.arange(0, BLOCK)
        held = slot < length
        if LARGEST:
            weight = tl.full([BLOCK], 1.0, tl.float32) * most
        else:
            weight = _norm(block_of(states, start, begin, length, dims, HEAD_DIM, BLOCK), SQUARED)
        for number in tl.static_range(PLANES):
            score = tl.full([BLOCK], -1.0, tl.float32)
            if GIVEN:
                score = tl.load(scores + number * plane + segment * longest + slot, mask=held, other=0.0)
                tl.debug_barrier()  # `out` may be the scores
            tl.store(out + number * out_plane + segment * longest + slot, score * weight, mask=held)


@triton.jit
def _norm(states, SQUARED: tl.constexpr):
    """Return the norm of every row."""
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
    """Write the squared norm of every key and value over the sum of its span; 0 behind the pairs."""
    segment, states = tl.program_id(0).to(tl.int64), keys
    if tl.program_id(2) == 1:
        states = values
    start, dims = tl.load(starts + segment), tl.arange(0, PADDED_DIM)
    first = tl.program_id(1) * span
    stop = tl.minimum(first + span, longest)
    length = tl.minimum(tl.load(lengths + segment), stop)
    row, total = shares + tl.program_id(2) * plane + segment * longest, 0.0
    for begin in range(first, length, BLOCK):
        x = block_of(states, start, begin, length, dims, HEAD_DIM, BLOCK)
        total += tl.sum(tl.sum(x * x, 1), 0)
    total = tl.maximum(total, TINY)  # a span of zeros counts 0
    for begin in range(first, stop, BLOCK):
        slot = begin + tl.arange(0, BLOCK)
        x = block_of(states, start, begin, length, dims, HEAD_DIM, BLOCK)
        tl.store(row + slot, tl.sum(x * x, 1) / total, mask=slot < stop)


@triton.jit
def _cur(of_keys, of_values, lengths, longest, sink, LEVERAGE: tl.constexpr, BLOCK: tl.constexpr):
    """Write the scores from the shares of keys and values, in place of the scores of keys."""
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
    """Return a block of shares as `LEVERAGE` says; 0 behind the pairs."""
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
