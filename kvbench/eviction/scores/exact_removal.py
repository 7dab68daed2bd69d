"""The exact change of the attention output when a pair is removed and the softmax of the others sums to one again.

What OBCache (equation 1) calls infeasible to compute has a closed form: with a the weight of the pair, v its value and
o the output of the row, the output without it differs from o by a / (1 - a) (v - o).
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
    """sum_i (A_ij / (1 - A_ij))^2 |v_j - o_i|^2, the sum over the observed rows.

    If a row gives a pair nearly all its weight, so that 1 - A is below what float32 resolves, the largest possible
    change is used instead: see `furthest` in `kvbench.eviction.scores.window`.
    """

    name: str = "exact_removal"
    inputs: ClassVar[ScoreInputs] = ScoreInputs(window=True)
    group: ClassVar[Group] = "sum"

    def __call__(self, layer: LayerCache, rows: Window | None, reduce: Reduce) -> Scores:
        """Scores [heads, tokens] of a dense layer; `reduce` is ignored."""
        assert rows is not None
        bound = furthest(layer)

        def term(chunk: Chunk) -> Columns:
            odds = chunk.weights / chunk.rest.clamp_min(RESOLVED)
            return torch.where(chunk.rest < RESOLVED, bound(chunk), odds.square() * chunk.distances).sum(dim=1)

        return over_columns(layer, resolved(layer, rows), term, named="exact_removal")
