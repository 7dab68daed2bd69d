"""What layer allocations read of a layer: one number each, in float64."""

import math

import torch

from kvbench.cache.kernels.column_sums.terms import EPSILON
from kvbench.cache.kv_cache import LayerCache, Window
from kvbench.cache.shapes import Ranked
from kvbench.eviction.scores.window import blocks, chunks, fused_sums, moments


def entropy(scores: Ranked) -> float:
    """-sum p log p / log(number of scores), with p the scores of all heads of a layer divided by their sum.

    LAVa, equation 7 as in its code. 0 for scores without any mass, 1 for a single one that has some.
    """
    mass = scores.double().flatten()
    total = float(mass.sum())
    if total <= 0:
        return 0.0
    if mass.numel() == 1:
        return 1.0
    p = mass / total
    return float(-torch.xlogy(p, p).sum()) / math.log(mass.numel())


def preference(layer: LayerCache, rows: Window, recent: int) -> tuple[float, float]:
    """CAKE's dispersion -sum A log(A + 1e-10) and shift, the sum of the variances of A over the rows.

    Over all query heads, the voting rows, and every column but the newest `recent`; rows are not normalised again.
    """
    stop = layer.lengths[0] - recent
    fast = fused_sums(layer, rows, ("dispersion", "attn_variance"))
    if fast is not None:
        given, shift = (fast[term][:, :stop].sum(dtype=torch.float64) for term in ("dispersion", "attn_variance"))
        return max(0.0, float(given)), float(shift)
    dispersion = 0.0
    for block, num_tokens in blocks(layer, rows):
        for chunk in chunks(layer, block, num_tokens):
            weights = chunk.weights[..., : max(0, stop - chunk.start)]
            dispersion -= float((weights * (weights + EPSILON).log()).sum(dtype=torch.float64))
    return max(0.0, dispersion), float(moments(layer, rows)[1][:, :stop].sum(dtype=torch.float64))
