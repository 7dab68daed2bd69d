"""The negated L2 norm of the key: small keys are kept.

Devoto et al. 2024, https://arxiv.org/abs/2406.11430 (`Knorm` of kvpress): keys of small norm draw much attention.
"""

from dataclasses import dataclass
from typing import ClassVar

from kvbench.cache.kv_cache import LayerCache, Window
from kvbench.cache.shapes import Scores
from kvbench.eviction.scores.score import Reduce, Score


@dataclass(frozen=True)
class KeyNorm(Score):
    """-|k_j|."""

    name: str = "key_norm"
    signed: ClassVar[bool] = True

    def __call__(self, layer: LayerCache, rows: Window | None, reduce: Reduce) -> Scores:
        keys, _ = layer.dense
        return -keys.float().norm(dim=-1)
