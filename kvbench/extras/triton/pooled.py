"""A Triton kernel that pools scores over ragged segments, each with its own pool, in float32."""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false
import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

from kvbench.cache.kernels.ragged_decode import PerSegment

LONG_BLOCK = 1024
"""Slots whose numbers a program holds, without their pairs."""
Slots = Float[Tensor, "segments slots"]
PerSlot = Int[Tensor, "segments slots"]


def pooled(
    scores: Slots, order: PerSlot | None, lengths: PerSegment, apart: PerSegment, sizes: PerSegment, means: PerSegment
) -> Float[Tensor, "2 segments slots"]:
    """Scores pooled over `sizes` neighbours, without the last `apart` pairs of a segment, and as they are.

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
