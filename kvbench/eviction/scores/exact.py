"""The exact change of the attention output when a pair is removed, or when its key and value are set to zero.

What OBCache (equation 1) calls infeasible to compute has a closed form. With a the weight of the pair, v its value, o
the output and E = exp(-lse) of the row, the output without the pair differs from o by a / (1 - a) (v - o). The literal
reading of equation 1 leaves the pair in the softmax with the logit 0: the output becomes (o - a v) / (1 - a + E).

If a row gives a pair nearly all its weight, so that the denominator is below what float32 resolves, the largest
possible change is taken instead: see `furthest` in `kvbench.eviction.scores.window`.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from kvbench.cache.kernels.column_sums import RESOLVED
from kvbench.cache.kv_cache import LayerCache, Window
from kvbench.cache.shapes import Scores
from kvbench.eviction.pooling import Group
from kvbench.eviction.scores.score import Reduce, Score, ScoreInputs
from kvbench.eviction.scores.window import Chunk, Columns, furthest, over_columns, resolved


@dataclass(frozen=True)
class ExactRemoval(Score):
    """sum_i (A_ij / (1 - A_ij))^2 |v_j - o_i|^2, the sum over the observed rows."""

    name: str = "exact_removal"
    inputs: ClassVar[ScoreInputs] = ScoreInputs(window=True)
    group: ClassVar[Group] = "sum"
    head_by_head: ClassVar[bool] = True
    any_order: ClassVar[bool] = True

    def __call__(self, layer: LayerCache, rows: Window | None, reduce: Reduce) -> Scores:
        assert rows is not None
        bound = furthest(layer)

        def term(chunk: Chunk) -> Columns:
            rest = chunk.rest
            odds = chunk.weights / rest.clamp_min(RESOLVED)
            return torch.where(rest < RESOLVED, bound(chunk), odds.square() * chunk.distances).sum(dim=1)

        return over_columns(layer, resolved(layer, rows), term, named="exact_removal")


@dataclass(frozen=True)
class ExactZeroed(ExactRemoval):
    """sum_i |o'_i - o_i|^2 with o'_i = (o_i - A_ij v_j) / (1 - A_ij + exp(-lse_i)), over rows that attend to j.

    The score changes if all logits of a row are shifted, because the logit 0 then means another weight.
    """

    name: str = "exact_zeroed"

    def __call__(self, layer: LayerCache, rows: Window | None, reduce: Reduce) -> Scores:
        assert rows is not None
        bound = furthest(layer)

        def term(chunk: Chunk) -> Columns:
            # Numerator and denominator times p = 1 / (1 + E): no exponential can overflow. With q = 1 - p,
            # o' - o = -(a p (v - o) + q o) / (p (1 - a) + q).
            p, q = chunk.lse.sigmoid(), (-chunk.lse).sigmoid()
            moved, left = p * chunk.weights, p * chunk.rest + q
            o2 = chunk.outputs.square().sum(-1, keepdim=True)
            squares = moved.square() * chunk.distances + 2 * moved * q * chunk.leanings + q.square() * o2
            errors = torch.where(
                left < RESOLVED, bound(chunk), squares.clamp_min(0) / left.clamp_min(RESOLVED).square()
            )
            return errors.masked_fill(chunk.hidden, 0).sum(dim=1)

        return over_columns(layer, resolved(layer, rows), term, named="exact_zeroed")
