"""Scores that read nothing but keys: their norm, and how unlike the others they are."""

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F

from kvbench.cache.kv_cache import LayerCache, Window
from kvbench.cache.shapes import Scores
from kvbench.eviction.scores.score import Reduce, Score


@dataclass(frozen=True)
class KeyNorm(Score):
    """-|k_j|.

    Devoto et al. 2024, https://arxiv.org/abs/2406.11430 (`Knorm` of kvpress): keys of small norm draw much attention.
    """

    name: str = "key_norm"
    signed: ClassVar[bool] = True
    head_by_head: ClassVar[bool] = True
    any_order: ClassVar[bool] = True

    def __call__(self, layer: LayerCache, rows: Window | None, reduce: Reduce) -> Scores:
        return layer.by_column(-layer.keys.float().norm(dim=-1))


@dataclass(frozen=True)
class KeyDiff(Score):
    """-cos(k_j, mean over all cached keys of k / |k|). A key of zeros has no direction and counts 0.

    KeyDiff (Park et al. 2025, https://arxiv.org/abs/2504.15364), on keys after RoPE as in kvpress.
    """

    name: str = "key_diff"
    signed: ClassVar[bool] = True
    head_by_head: ClassVar[bool] = True

    def __call__(self, layer: LayerCache, rows: Window | None, reduce: Reduce) -> Scores:
        keys, _ = layer.dense
        directions = F.normalize(keys.float(), dim=-1)
        centre = F.normalize(directions.mean(dim=1, keepdim=True), dim=-1)
        return -(directions * centre).sum(dim=-1)
