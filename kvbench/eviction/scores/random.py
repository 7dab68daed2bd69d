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
        return self.drawn(layer.index, layer.cache_heads, layer.lengths[0]).to(layer.keys.device)

    def drawn(self, layer: int, heads: int, tokens: int) -> Scores:
        """The scores on the CPU, which depend on nothing else."""
        return torch.rand(heads, tokens, generator=generator(self.seed, layer, tokens))


def generator(*numbers: int) -> torch.Generator:
    """A generator on the CPU that depends on these numbers only."""
    digest = hashlib.sha256("/".join(map(str, numbers)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7]))
