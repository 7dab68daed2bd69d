"""Sums over the queries of one token and the pairs of many segments, each with its own sum: the reference."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from kvbench.cache.kernels.column_sums import TERMS, WITHOUT_DIAGONAL, column_sums
from kvbench.cache.kernels.ragged_decode import FlatPairs, SegmentLse, SegmentRows, Segments
from kvbench.eviction.scores.ragged import Merge, RowTerm


def row_sums(
    queries: SegmentRows,
    keys: FlatPairs,
    values: FlatPairs,
    outputs: SegmentRows,
    lse: SegmentLse,
    segments: Segments,
    terms: Sequence[RowTerm],
    merges: Sequence[Merge],
    scaling: float,
    softcap: float | None = None,
) -> Float[Tensor, "segments slots"]:
    """Return one number per pair of every segment, 0 behind its pairs, in float32 or wider.

    The rows of a segment are the query heads of the newest token, whose pair is the last one.
    """
    wide = torch.float64 if queries.dtype == torch.float64 else torch.float32
    result = torch.zeros(len(queries), segments.longest, dtype=wide, device=queries.device)
    bounds = zip(segments.starts.tolist(), segments.lengths.tolist(), terms, merges, strict=True)
    for number, (start, length, term, merge) in enumerate(bounds):
        if term == "nothing":
            continue
        rows, pairs = (queries[number, :, None], outputs[number, :, None]), slice(start, start + length)
        if term == "logit":
            scaled = rows[0][:, 0].to(wide) @ keys[pairs].to(wide).T * scaling
            sums = scaled if softcap is None else (scaled / softcap).tanh() * softcap
        else:
            named = term.removesuffix("_of_others")
            assert named in TERMS
            sums = column_sums(
                rows[0], keys[None, pairs], values[None, pairs], rows[1], lse[number, :, None], scaling, [named],
                softcap, diagonal=named == term or named not in WITHOUT_DIAGONAL,
            )[named]  # fmt: skip
        merged = {"sum": sums.sum(0), "mean": sums.mean(0), "max": sums.amax(0), "none": sums[0]}
        result[number, :length] = merged[merge]
        if term == "logit":
            result[number, max(1, length - 1) :] = -torch.inf
    return result
