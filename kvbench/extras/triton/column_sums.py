"""Column sums over the observation window by a Triton kernel, in float32.

`kvbench.cache.kernels.column_sums` is the reference.

One pass over keys and values: a program owns a block of columns of one KV head and meets the rows of every query head
of its group, so K and V are read once and no two programs add to the same number. Values are compared with outputs
through u = v.o', with o' the output minus a centre: v - o does not change when both are moved, and without the centre
the expanded square would cancel. In half precision o' is split into two half precision parts, so that products run on
tensor cores at the precision of float32.

    centre    c, the mean of o over the rows of a KV head         moved2    |v - c|^2
    coarse, fine    half precision numbers whose sum is o - c     along     (v - c).c
    spread    |o|^2 - |c|^2                                       apart     |v - o|^2 = moved2 + spread - 2 u
"""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false
from collections.abc import Sequence
from functools import partial

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from kvbench.cache.kernels.column_sums import (
    BOUNDED,
    EPSILON,
    RESOLVED,
    TERMS,
    WITH_OUTPUTS,
    WITH_VALUES,
    Sums,
    Term,
    check_terms,
)
from kvbench.cache.kernels.ragged_decode import FlatPairs, Segments
from kvbench.cache.shapes import Dense, Rows
from kvbench.extras.triton.programs import INTERPRETED, Tuned, compiled_sizes, length_class, logits, product

SIZES = [
    {"BLOCK": block, "STAGES": stages, "num_warps": 8, "num_stages": stages}
    for block, stages in ((64, 3), (128, 3), (32, 2))
]
"""Columns of a block, and blocks of rows that are loaded ahead. All have 8 warps: how a sum over rows is divided among
them decides its order."""


def column_sums(
    queries: Rows,
    keys: Dense | FlatPairs,
    values: Dense | FlatPairs,
    outputs: Rows,
    lse: Float[Tensor, "heads queries"],
    scaling: float,
    terms: Sequence[Term],
    softcap: float | None = None,
    diagonal: bool = True,
    segments: Segments | None = None,
) -> Sums:
    """Return the requested sums over the newest rows of a dense layer, in float32; query head h reads KV head h //
    group.

    segments: the pairs of each KV head in flat keys and values [pairs, head_dim]; columns beyond them are 0.

    Raises UserError as `check_terms` does, for float64, and for head_dim above 256.
    """
    heads, rows, head_dim = queries.shape
    if segments is None:
        kv_heads, tokens, bounds = *keys.shape[:2], (keys, keys)
    else:
        kv_heads, tokens, bounds = len(segments.starts), segments.longest, (segments.starts, segments.lengths)
        keys, values = keys[None], values[None]
    check_terms(terms, rows, diagonal)
    requested, group, outputs = set(terms), heads // kv_heads, outputs.float().contiguous()
    coarse = fine = spread = centre = outputs  # read by no other term
    if requested & WITH_OUTPUTS:
        by_kv_head = outputs.view(kv_heads, -1, head_dim)
        centre = by_kv_head.mean(dim=1, keepdim=True)
        moved = by_kv_head - centre
        coarse = moved.to(values.dtype)
        fine = (moved - coarse).to(values.dtype)
        moved = coarse + fine.float()  # what the kernel multiplies
        spread = (moved * torch.add(moved, centre, alpha=2)).sum(dim=2)
    bounded = [term for term in BOUNDED if term in requested]
    planes = len(terms) + len(bounded) + bool(bounded)  # rows in which each is bounded, and the norms that bound them
    result = torch.empty(planes, heads, tokens, dtype=torch.float32, device=queries.device)
    plane = {term: terms.index(term) if term in requested else -1 for term in TERMS}
    bounded_plane = {term: len(terms) + bounded.index(term) if term in bounded else -1 for term in BOUNDED}
    with torch.cuda.device_of(queries):  # layers may lie on any of several GPUs
        _column_sums[lambda sizes: (triton.cdiv(tokens, sizes["BLOCK"]), kv_heads)](
            queries.contiguous(), keys, values, outputs, coarse, fine, spread, centre,
            lse.float().contiguous(), result, *bounds, rows, tokens, scaling, softcap or 0.0,
            *keys.stride()[:2], *values.stride()[:2],
            *(plane[term] for term in TERMS), *(bounded_plane[term] for term in BOUNDED),
            AT_NORMS=planes - 1 if bounded else -1, RAGGED=segments is not None, GROUP=group, HEADS=heads,
            WITH_VALUES=bool(requested & WITH_VALUES), WITH_OUTPUTS=bool(requested & WITH_OUTPUTS),
            SPLIT=values.dtype.itemsize < 4, UPCAST=INTERPRETED, CAPPED=softcap is not None, DIAGONAL=diagonal,
            RESOLVED=RESOLVED, EPSILON=EPSILON, length_class=length_class(tokens), **compiled_sizes(queries),
        )  # fmt: skip
    for term in bounded:
        norms = result[-1].sqrt()
        result[plane[term]] += result[bounded_plane[term]] * (norms + norms.amax(dim=1, keepdim=True)).square()
    return {term: result[index] for index, term in enumerate(terms)}


@partial(Tuned, sizes=SIZES, key=["HEAD_DIM", "GROUP", "WITH_VALUES", "WITH_OUTPUTS", "length_class"])
@triton.jit(do_not_specialize=["length_class"])
def _column_sums(
    queries, keys, values, outputs, coarse, fine, spreads, centre, lse, result, starts, lengths,
    rows, longest, scaling, softcap, key_head, key_token, value_head, value_token,
    AT_ATTN: tl.constexpr, AT_MAX: tl.constexpr, AT_SQUARES: tl.constexpr, AT_VARIANCE: tl.constexpr,
    AT_DISPERSION: tl.constexpr, AT_VALUE: tl.constexpr, AT_KEY: tl.constexpr, AT_JOINT: tl.constexpr,
    AT_REMOVAL: tl.constexpr, AT_ZEROED: tl.constexpr, AT_REMOVAL_FULL: tl.constexpr, AT_ZEROED_FULL: tl.constexpr,
    AT_NORMS: tl.constexpr, RAGGED: tl.constexpr, GROUP: tl.constexpr, HEADS: tl.constexpr, HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, WITH_VALUES: tl.constexpr,
    WITH_OUTPUTS: tl.constexpr, SPLIT: tl.constexpr, UPCAST: tl.constexpr, CAPPED: tl.constexpr,
    DIAGONAL: tl.constexpr, RESOLVED: tl.constexpr, EPSILON: tl.constexpr, STAGES: tl.constexpr, length_class
):  # fmt: skip
    kv_head = tl.program_id(1).to(tl.int64)
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    dims = tl.arange(0, PADDED_DIM)
    token = columns[:, None].to(tl.int64)
    tokens = longest
    if RAGGED:
        start_pair = tl.load(starts + kv_head)
        tokens = tl.load(lengths + kv_head)
        keys += start_pair * key_token
        values += start_pair * value_token
    else:
        keys += kv_head * key_head
        values += kv_head * value_head
    inside = (columns[:, None] < tokens) & (dims[None, :] < HEAD_DIM)
    key_places = keys + token * key_token + dims[None, :]
    value_places = values + token * value_token + dims[None, :]
    k = tl.load(key_places, mask=inside, other=0.0)
    zero = tl.zeros([BLOCK], tl.float32)
    v, v2, moved2, along, c2 = k, zero, zero, zero, 0.0
    if WITH_VALUES:
        v = tl.load(value_places, mask=inside, other=0.0)
        v32 = v.to(tl.float32)
        v2 = tl.sum(v32 * v32, 1)
        c = tl.load(centre + kv_head * HEAD_DIM + dims, mask=dims < HEAD_DIM, other=0.0)
        moved = tl.where(inside, v32 - c[None, :], 0.0)
        moved2 = tl.sum(moved * moved, 1)
        along = tl.sum(moved * c[None, :], 1)
        c2 = tl.sum(c * c, 0)
    first = tokens - rows
    start = tl.maximum(0, (tl.program_id(0) * BLOCK - first) // ROWS * ROWS)
    start = tl.minimum(start, (rows - 1) // ROWS * ROWS)  # columns behind the pairs of a head get a sum of 0
    blocks = tl.cdiv(rows - start, ROWS)
    steps = GROUP * blocks
    peak = tl.zeros([ROWS, BLOCK], tl.float32)
    # A row gives at most one column more than half its weight. Its o is close to v there, so that |v - o|^2 is computed
    # from the difference itself, in a second pass, which only programs with such a weight make.
    for NEAR in tl.static_range(2 if WITH_OUTPUTS else 1):
        if NEAR == 1:
            tl.debug_barrier()  # it adds to what other threads of the program have stored
            saturated = tl.max(tl.max(peak, 1), 0) > 0.5
            steps = tl.where(saturated, steps, 0)
            if not SPLIT:  # in float32 both passes would otherwise share operands that fill the registers
                again = inside & (columns[:, None] < tl.where(saturated, tokens, 0))
                k = tl.load(key_places, mask=again, other=0.0)
                v = tl.load(value_places, mask=again, other=0.0)
        k_columns, v_columns = tl.trans(k), tl.trans(v)
        total, largest, squares, dispersion = zero, zero, zero, zero
        mean, deviations, by_key, by_pair = zero, zero, zero, zero
        removed, removed_full, zeroed, zeroed_full = zero, zero, zero, zero
        counted = start * 1.0  # rows before `start` see none of these columns: weights of 0
        for step in tl.range(0, steps, num_stages=1 if NEAR == 1 else STAGES):  # heads of the group, blocks of rows
            head = kv_head * GROUP + step // blocks
            begin = start + step % blocks * ROWS
            row = begin + tl.arange(0, ROWS)
            row_mask = row < rows
            at = head * rows + row
            offsets = at[:, None] * HEAD_DIM + dims[None, :]
            input_mask = row_mask[:, None] & (dims[None, :] < HEAD_DIM)
            q = tl.load(queries + offsets, mask=input_mask, other=0.0)
            norm = tl.load(lse + at, mask=row_mask, other=float("inf"))  # weights of 0 beyond the last row
            visible = columns[None, :] <= first + row[:, None]
            z = logits(q, k_columns, scaling, softcap, CAPPED, UPCAST)
            a = tl.where(visible, tl.exp(z - norm[:, None]), 0.0)
            if not DIAGONAL:
                a = tl.where(columns[None, :] == first + row[:, None], 0.0, a)
            if NEAR == 0:
                peak = tl.maximum(peak, a)
                total += tl.sum(a, 0)
                largest = tl.maximum(largest, tl.max(a, 0))
                squares += tl.sum(a * a, 0)
                if AT_VARIANCE >= 0:
                    count = tl.minimum(ROWS, rows - begin) * 1.0
                    block_mean = tl.sum(a, 0) / count
                    deviation = tl.where(row_mask[:, None], a - block_mean[None, :], 0.0)
                    shift = block_mean - mean
                    together = counted + count
                    mean += shift * (count / together)
                    deviations += tl.sum(deviation * deviation, 0) + shift * shift * (counted * count / together)
                    counted = together
                if AT_DISPERSION >= 0:
                    dispersion -= tl.sum(a * tl.log(a + EPSILON), 0)
            if WITH_OUTPUTS:
                u = product(tl.load(coarse + offsets, mask=input_mask, other=0.0), v_columns, UPCAST)
                if SPLIT:
                    u += product(tl.load(fine + offsets, mask=input_mask, other=0.0), v_columns, UPCAST)
                spread = tl.load(spreads + at, mask=row_mask, other=0.0)[:, None]
                if NEAR == 1:
                    counts = a > 0.5
                    near_mask = input_mask & (tl.max(a, 1)[:, None] > 0.5)
                    nearest = (tl.program_id(0) * BLOCK + tl.argmax(a, 1)[:, None]).to(tl.int64)
                    value = tl.load(values + nearest * value_token + dims[None, :], mask=near_mask, other=0.0)
                    difference = value.to(tl.float32) - tl.load(outputs + offsets, mask=near_mask, other=0.0)
                    apart = tl.sum(difference * difference, 1)[:, None]
                else:
                    counts = visible & (a <= 0.5)
                    apart = (moved2[None, :] + spread) - 2 * u
                a2 = tl.where(counts, a * a, 0.0)
                if AT_KEY >= 0:
                    by_key += tl.sum(a2 * (z * z * tl.maximum(apart, 0.0)), 0)
                if AT_JOINT >= 0:
                    both = v2[None, :] + z * ((2 * (moved2 + along)[None, :] - 2 * u) + z * apart)
                    by_pair += tl.sum(a2 * tl.maximum(both, 0.0), 0)
                if AT_NORMS >= 0:
                    apart = tl.maximum(apart, 0.0)
                    x = tl.minimum(z - norm[:, None], 0.0)
                    rest = tl.where(x > -0.01, -x * (1 + x / 2 * (1 + x / 3)), 1 - a)  # 1 - exp(x), also close to 0
                    if AT_REMOVAL >= 0:
                        bounded = tl.maximum(rest, RESOLVED)
                        removed += tl.sum(tl.where(rest < RESOLVED, 0.0, a2 / (bounded * bounded) * apart), 0)
                        removed_full += tl.sum(tl.where(counts & (rest < RESOLVED), 1.0, 0.0), 0)
                    if AT_ZEROED >= 0:  # times p = 1 / (1 + exp(-lse)), q = 1 - p: nothing overflows
                        p, q = tl.sigmoid(norm)[:, None], tl.sigmoid(-norm)[:, None]
                        leaning = u + along[None, :] - spread
                        numerator = p * a * (p * a * apart + 2 * q * leaning) + q * q * (spread + c2)
                        remaining = p * rest + q
                        bounded = tl.maximum(remaining, RESOLVED)
                        resolved = counts & (remaining >= RESOLVED)
                        zeroed += tl.sum(tl.where(resolved, tl.maximum(numerator, 0.0) / (bounded * bounded), 0.0), 0)
                        zeroed_full += tl.sum(tl.where(counts & (remaining < RESOLVED), 1.0, 0.0), 0)
            if begin + ROWS >= rows:  # the last block of a head
                out = result + head * longest + columns
                if NEAR == 0:
                    _store(out, AT_ATTN, total, columns, longest, HEADS, False)
                    _store(out, AT_MAX, largest, columns, longest, HEADS, False)
                    _store(out, AT_SQUARES, squares, columns, longest, HEADS, False)
                    if AT_VARIANCE >= 0:  # of at least two rows
                        _store(out, AT_VARIANCE, deviations / (rows - 1), columns, longest, HEADS, False)
                    _store(out, AT_DISPERSION, dispersion, columns, longest, HEADS, False)
                    _store(out, AT_VALUE, squares * v2, columns, longest, HEADS, False)
                    _store(out, AT_NORMS, v2, columns, longest, HEADS, False)
                _store(out, AT_KEY, by_key, columns, longest, HEADS, NEAR == 1)
                _store(out, AT_JOINT, by_pair, columns, longest, HEADS, NEAR == 1)
                _store(out, AT_REMOVAL, removed, columns, longest, HEADS, NEAR == 1)
                _store(out, AT_REMOVAL_FULL, removed_full, columns, longest, HEADS, NEAR == 1)
                _store(out, AT_ZEROED, zeroed, columns, longest, HEADS, NEAR == 1)
                _store(out, AT_ZEROED_FULL, zeroed_full, columns, longest, HEADS, NEAR == 1)
                total, largest, squares, dispersion = zero, zero, zero, zero
                mean, deviations, by_key, by_pair = zero, zero, zero, zero
                removed, removed_full, zeroed, zeroed_full = zero, zero, zero, zero
                counted = start * 1.0


@triton.jit
def _store(out, PLANE: tl.constexpr, sums, columns, tokens, HEADS: tl.constexpr, ADD: tl.constexpr):
    """Store the sums of a block of columns in their plane of the result, or add them to what the same program stored
    there; PLANE is -1 for a term not requested.
    """
    if PLANE >= 0:
        place = out + tl.cast(tokens, tl.int64) * (PLANE * HEADS)  # HEADS counts all layers of a stack
        if ADD:
            sums += tl.load(place, mask=columns < tokens, other=0.0)
        tl.store(place, sums, mask=columns < tokens)
