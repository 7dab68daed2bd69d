"""Recency: the score is the position, so the newest KV pairs are kept.

With sinks protected this is StreamingLLM's rule (Xiao et al. 2024, https://arxiv.org/abs/2309.17453, section 3.2).
"""

from dataclasses import dataclass
from typing import ClassVar

from kvbench.cache.kv_cache import LayerCache, ObservationWindow
from kvbench.cache.shapes import Scores
from kvbench.eviction.scores.score import RawTerm, Reduce, Score


@dataclass(frozen=True)
class Recency(Score):
    """The position of the pair in the token sequence."""

    name: str = "recency"
    row_term: ClassVar[RawTerm] = "position"
    separate: ClassVar[bool] = True

    def __call__(self, layer: LayerCache, window: ObservationWindow | None, reduce: Reduce) -> Scores:
        return layer.positions.view(layer.cache_heads, -1).float()
