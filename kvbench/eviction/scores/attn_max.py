"""Largest attention weight that a pair receives from any observed row.

H2O-max in the appendix of KVzip (Kim et al. 2025, https://arxiv.org/abs/2505.23416): over all queries of the prompt,
the diagonal included, and over the query heads of the group.
"""

from dataclasses import dataclass
from typing import ClassVar

from kvbench.cache.kv_cache import LayerCache, Window
from kvbench.cache.shapes import Scores
from kvbench.eviction.pooling import Group
from kvbench.eviction.scores.attn import received
from kvbench.eviction.scores.score import Reduce, Score, ScoreInputs


@dataclass(frozen=True)
class AttentionMax(Score):
    """max over the observed rows i of the attention weight A_ij, with or without the weight that a row gives itself."""

    name: str = "attn_max"
    diagonal: bool = True
    inputs: ClassVar[ScoreInputs] = ScoreInputs(window=True)
    group: ClassVar[Group] = "max"

    def __call__(self, layer: LayerCache, rows: Window | None, reduce: Reduce) -> Scores:
        """Scores [heads, tokens] of a dense layer; `reduce` is ignored."""
        assert rows is not None
        return received(layer, rows, "max", diagonal=self.diagonal)
