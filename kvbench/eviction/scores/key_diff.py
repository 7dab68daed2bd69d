"""The negated cosine between a key and the mean direction of the keys: keys unlike the others are kept.

KeyDiff (Park et al. 2025, https://arxiv.org/abs/2504.15364), on keys after RoPE as in kvpress.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F

from kvbench.cache.kv_cache import LayerCache, Window
from kvbench.cache.shapes import Scores
from kvbench.eviction.scores.score import Reduce, Score


@dataclass(frozen=True)
class KeyDiff(Score):
    """-cos(k_j, mean over all cached keys of k / |k|). A key of zeros has no direction and counts 0."""

    name: str = "key_diff"
    signed: ClassVar[bool] = True

    def __call__(self, layer: LayerCache, rows: Window | None, reduce: Reduce) -> Scores:
        keys, _ = layer.dense
        directions = F.normalize(keys.float(), dim=-1)
        centre = F.normalize(directions.mean(dim=1, keepdim=True), dim=-1)
        return -(directions * centre).sum(dim=-1)
