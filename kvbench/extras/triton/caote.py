"""The Triton kernel of CAOTE over ragged segments; its shares are float64. The reference is the score.

A result has a number per slot of every segment; those behind its pairs mean nothing.
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
Planes = Float[Tensor, "planes segments slots"]


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
        v = block_of(values, start, begin, length, dims, HEAD_DIM, BLOCK)
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
        v = block_of(values, start, begin, length, dims, HEAD_DIM, BLOCK)
        moved = tl.where(held[:, None], v - centre[None, :], 0.0)
        distance = tl.sqrt(tl.sum(moved * moved, 1))
        bound = tl.sqrt(tl.sum(v * v, 1)) + tl.sqrt(furthest)
        if SQUARED:
            distance, bound = distance * distance, bound * bound
        h = tl.load(host + slot, mask=held, other=0.0).to(tl.float64)
        share = tl.where(total > 0, h / bounded, 0.0)
        remaining = tl.where(total > 0, (total - h) / bounded, 1.0)
        change = share / tl.maximum(remaining, resolved) * distance.to(tl.float64)
        change = tl.where(remaining < resolved, tl.maximum(change, bound.to(tl.float64)), change)
        tl.debug_barrier()  # `out` may be the host's scores
        tl.store(out + slot, change.to(tl.float32), mask=held)
