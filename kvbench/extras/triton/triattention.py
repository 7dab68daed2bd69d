"""The Triton kernel of TriAttention over ragged segments, in float32. The reference is the score.

A result has a number per slot of every segment; those behind its pairs mean nothing.
"""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false
from typing import Literal

import torch
import triton
import triton.language as tl
from jaxtyping import Complex, Float
from torch import Tensor

from kvbench.cache.kernels.ragged_decode import FlatPairs, Segments

BLOCK = 32
"""Pairs that a program holds."""
Slots = Float[Tensor, "segments slots"]


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
    """Return the scores of a block of keys for one query head; 0 behind the pairs of a segment."""
    slot = begin + tl.arange(0, BLOCK)
    inside = (slot[:, None] < length) & (number[None, :] < HALF)
    place = first + slot[:, None] * 2 * HALF + number[None, :] * FIRST
    real = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    imaginary = tl.load(place + SECOND, mask=inside, other=0.0).to(tl.float32)
    size = tl.sqrt(real * real + imaginary * imaginary)
    return tl.sum(real * w_real[None, :] + imaginary * w_imaginary[None, :] + size * spread[None, :], 1)
