"""Attention that fades: what a pair received from the observed queries, halved for every so many tokens of its age."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch

from kvbench.cache.kv_cache import LayerCache, ObservationWindow
from kvbench.cache.shapes import Scores
from kvbench.eviction.pooling import Group
from kvbench.eviction.scores.attn import received
from kvbench.eviction.scores.score import Reduce, Score, ScoreInputs
from kvbench.support.annotations import Help


@dataclass(frozen=True)
class FadedAttention(Score):
    """Attention weights A_ij merged over the observed rows i, times 2 ** -(age of j / half_life).

    half_life: in tokens. Raises ValueError for one that is not above 0.
    """

    half_life: Annotated[float, Help("tokens after which a pair is worth half as much")] = 64
    name: str = "sample_score"
    inputs: ClassVar[ScoreInputs] = ScoreInputs(window=True)
    group: ClassVar[Group] = "mean"

    def __post_init__(self) -> None:
        if not self.half_life > 0:
            raise ValueError(f"score.half_life={self.half_life}: a number of tokens above 0, e.g. 64")

    def __call__(self, layer: LayerCache, window: ObservationWindow | None, reduce: Reduce) -> Scores:
        """Scores [heads, tokens] of a dense layer."""
        assert window is not None
        age = layer.positions.max() - layer.positions.view(layer.cache_heads, -1)
        fading = torch.exp2(-age / self.half_life)
        weights = received(layer, window, reduce)
        return weights * fading.repeat_interleave(weights.shape[0] // fading.shape[0], dim=0)
