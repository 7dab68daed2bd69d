"""Random scores: the baseline that every method must beat.

Drawn from a generator of its own per layer and prompt length on the CPU, so that a row does not depend on what ran
before it or where. Two prompts of one length keep the same columns.
"""

import hashlib
from dataclasses import dataclass

import torch

from kvbench.cache.kv_cache import LayerCache, Window
from kvbench.cache.shapes import Scores
from kvbench.eviction.scores.score import Reduce, Score


@dataclass(frozen=True)
class Random(Score):
    """Uniform in [0, 1), independent by head and token."""

    seed: int = 0
    name: str = "random"

    def __call__(self, layer: LayerCache, rows: Window | None, reduce: Reduce) -> Scores:
        tokens = layer.lengths[0]
        digest = hashlib.sha256(f"{self.seed}/{layer.index}/{tokens}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:7]))
        return torch.rand(layer.cache_heads, tokens, generator=generator).to(layer.keys.device)
