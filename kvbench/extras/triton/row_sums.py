"""A Triton kernel for the sums of one new token over ragged segments, whose scores may differ.

A program owns a block of pairs of one segment and meets the query heads of its token one after the other. Everything is
float32, and v - o is taken directly, so that nothing has to be prepared and no difference cancels. The reference is
`row_sums_reference.py`.
"""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

from kvbench.cache.kernels.column_sums import RESOLVED
from kvbench.cache.kernels.ragged_decode import FlatPairs, SegmentLse, SegmentRows, Segments
from kvbench.eviction.scores.ragged import MERGES, ROW_TERMS
from kvbench.extras.triton.programs import compiled_sizes

BLOCK = 32
"""Pairs that a program holds, with keys and values in float32."""

PerSegment = Int[Tensor, "segments"]
Sums = Float[Tensor, "segments slots"]
CODES = {term: ROW_TERMS.index(term) for term in ROW_TERMS} | {merge: MERGES.index(merge) for merge in MERGES}
NAMES = {
    "NOTHING": CODES["nothing"],
    "SQUARES": CODES["attn_squares"],
    "OTHERS": CODES["attn_of_others"],
    "SQUARES_OF_OTHERS": CODES["attn_squares_of_others"],
    "LOGIT": CODES["logit"],
    "VALUE": CODES["obcache_value"],
    "KEY": CODES["obcache_key"],
    "JOINT": CODES["obcache_joint"],
    "REMOVAL": CODES["exact_removal"],
    "ZEROED": CODES["exact_zeroed"],
    "MEAN": CODES["mean"],
    "MAX": CODES["max"],
}
"""What the kernel calls the codes that it compares; those that read values come last."""


def row_sums(
    queries: SegmentRows,
    keys: FlatPairs,
    values: FlatPairs,
    outputs: SegmentRows,
    lse: SegmentLse,
    segments: Segments,
    terms: PerSegment,
    merges: PerSegment,
    scaling: float,
    softcap: float | None = None,
    state: tuple[Sums, PerSegment] | None = None,
) -> Sums:
    """As the reference, with the CODES of terms and merges. state: where the sums go, in place, and the segments whose
    sums are added to what is there; segments of `nothing`, and slots behind the pairs of others than `logit`, stay as
    they are.

    Raises UserError for float64, and for head_dim above 256.
    """
    count, group, head_dim = queries.shape
    sizes = compiled_sizes(queries)
    longest = segments.longest
    result = torch.empty(count, longest, dtype=torch.float32, device=queries.device) if state is None else state[0]
    with torch.cuda.device_of(queries):
        _row_sums[(count, triton.cdiv(longest, BLOCK))](
            queries.contiguous(), keys, values, outputs.contiguous(), lse.contiguous(), segments.starts,
            segments.lengths, terms, merges, terms if state is None else state[1], result, longest, scaling,
            softcap or 0.0, RESOLVED, CAPPED=softcap is not None, ADD=state is not None, GROUP=group, BLOCK=BLOCK,
            HEAD_DIM=head_dim, PADDED_DIM=sizes["PADDED_DIM"], **NAMES,
        )  # fmt: skip
    return result


@triton.jit
def _row_sums(
    queries, keys, values, outputs, lse, starts, lengths, terms, merges, adds, result, longest, scaling, softcap,
    resolved, CAPPED: tl.constexpr, ADD: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr,
    HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr, NOTHING: tl.constexpr, SQUARES: tl.constexpr,
    OTHERS: tl.constexpr, SQUARES_OF_OTHERS: tl.constexpr, LOGIT: tl.constexpr, VALUE: tl.constexpr, KEY: tl.constexpr,
    JOINT: tl.constexpr, REMOVAL: tl.constexpr, ZEROED: tl.constexpr, MEAN: tl.constexpr, MAX: tl.constexpr
):  # fmt: skip
    segment = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    dims = tl.arange(0, PADDED_DIM)
    length, term, merge = tl.load(lengths + segment), tl.load(terms + segment), tl.load(merges + segment)
    first = tl.load(starts + segment)
    held = column < tl.where(term == NOTHING, 0, length)
    inside = held[:, None] & (dims[None, :] < HEAD_DIM)
    valued = column < tl.where(term >= VALUE, length, 0)
    places = (first + column[:, None]) * HEAD_DIM + dims[None, :]
    k = tl.load(keys + places, mask=inside, other=0.0).to(tl.float32)
    v = tl.load(values + places, mask=inside & valued[:, None], other=0.0).to(tl.float32)
    v2 = tl.sum(v * v, 1)
    total = tl.zeros([BLOCK], tl.float32)
    if merge == MAX:
        total += float("-inf")
    for member in range(GROUP):
        row = segment * GROUP + member
        q = tl.load(queries + row * HEAD_DIM + dims, mask=dims < HEAD_DIM, other=0.0).to(tl.float32)
        norm = tl.load(lse + row)
        z = tl.sum(k * q[None, :], 1) * scaling
        if CAPPED:
            e = tl.exp(-2 * tl.abs(z) / softcap)
            z = softcap * (1 - e) / (1 + e) * tl.where(z < 0, -1.0, 1.0)
        a = tl.exp(z - norm)
        number = a
        if (term == SQUARES) | (term == SQUARES_OF_OTHERS):
            number = a * a
        if (term == OTHERS) | (term == SQUARES_OF_OTHERS):
            number = tl.where(column == length - 1, 0.0, number)
        if term == LOGIT:
            number = z
        if term == VALUE:
            number = a * a * v2
        if term > VALUE:
            o = tl.load(outputs + row * HEAD_DIM + dims, mask=dims < HEAD_DIM, other=0.0).to(tl.float32)
            moved = tl.where(inside, v - o[None, :], 0.0)
            apart = tl.sum(moved * moved, 1)
            if term == KEY:
                number = a * z * (a * z) * apart
            if term == JOINT:
                number = a * a * tl.maximum(v2 + z * (2 * tl.sum(v * moved, 1) + z * apart), 0.0)
            if term >= REMOVAL:
                x = tl.minimum(z - norm, 0.0)
                rest = tl.where(x > -0.01, -x * (1 + x / 2 * (1 + x / 3)), 1 - a)  # 1 - exp(x), also close to 0
                remaining, change = rest, a * a * apart
                if term == ZEROED:  # times p = 1 / (1 + exp(-lse)), q = 1 - p: nothing overflows
                    mine, other = tl.sigmoid(norm), tl.sigmoid(-norm)
                    remaining = mine * rest + other
                    leaning = tl.sum(moved * o[None, :], 1)
                    change = mine * a * (mine * a * apart + 2 * other * leaning) + other * other * tl.sum(o * o, 0)
                bounded = tl.maximum(remaining, resolved)
                number = tl.maximum(change, 0.0) / (bounded * bounded)
                unresolved = held & (remaining < resolved)
                if tl.max(unresolved.to(tl.int32), 0) > 0:
                    furthest = 0.0
                    for begin in range(0, length, BLOCK):
                        other_pair = begin + tl.arange(0, BLOCK)
                        mask = (other_pair[:, None] < length) & (dims[None, :] < HEAD_DIM)
                        index = (first + other_pair[:, None]) * HEAD_DIM + dims[None, :]
                        every = tl.load(values + index, mask=mask, other=0.0).to(tl.float32)
                        furthest = tl.maximum(furthest, tl.max(tl.sum(every * every, 1), 0))
                    bound = tl.sqrt(v2) + tl.sqrt(furthest)
                    number = tl.where(unresolved, bound * bound, number)
        if merge == MAX:
            total = tl.maximum(total, number)
        else:
            total += number
    if merge == MEAN:
        total = total / GROUP
    total = tl.where(held, total, 0.0)
    if term == LOGIT:  # a softmax follows
        total = tl.where(column < tl.maximum(length - 1, 1), total, float("-inf"))
        held = column < longest
    place = result + segment * longest + column
    if ADD:
        old = column < tl.where(tl.load(adds + segment) != 0, length, 0)
        total += tl.load(place, mask=old, other=0.0)
        tl.store(place, total, mask=held)
    else:
        tl.store(place, total, mask=column < longest)
