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
        drawn = torch.rand(layer.cache_heads, tokens, generator=generator(self.seed, layer.index, tokens))
        return drawn.to(layer.keys.device)


def generator(*numbers: int) -> torch.Generator:
    """A generator on the CPU that depends on these numbers only."""
    digest = hashlib.sha256("/".join(map(str, numbers)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7]))
