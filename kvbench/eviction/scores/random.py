"""Random scores: the baseline that every method must beat.

Drawn from a generator of its own per layer and prompt length on the CPU, so that a row does not depend on what ran
before it or where. Two prompts of one length keep the same columns.
"""

import hashlib
from collections import defaultdict
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch

from kvbench.cache.kv_cache import LayerCache, ObservationWindow
from kvbench.cache.shapes import Scores
from kvbench.eviction.scores.ragged import RaggedHeads, Slots
from kvbench.eviction.scores.score import RawTerm, Reduce, Score
from kvbench.support.annotations import Help


@dataclass(frozen=True)
class Random(Score):
    """Uniform in [0, 1), independent by head and token."""

    seed: Annotated[int, Help("of the random scores")] = 0
    name: str = "random"
    row_term: ClassVar[RawTerm] = "nothing"

    def __call__(self, layer: LayerCache, window: ObservationWindow | None, reduce: Reduce) -> Scores:
        return self._drawn(layer.index, layer.cache_heads, layer.lengths[0]).to(layer.keys.device)

    def raw_segments(self, heads: RaggedHeads, sums: Slots | None) -> Slots:
        return heads.once(self, lambda: self._of_cells(heads))

    def _of_cells(self, heads: RaggedHeads) -> Slots:
        """Drawn for the heads of equal length of a cell."""
        drawn = torch.zeros(len(heads.lengths), heads.segments.longest)
        alike = defaultdict[tuple[int, int], list[int]](list)
        for row, ((cell, _), length) in enumerate(zip(heads.owners, heads.lengths, strict=True)):
            alike[cell, length].append(row)
        for (_, length), rows in alike.items():
            drawn[rows, :length] = self._drawn(heads.index, len(rows), length)
        return drawn.to(heads.keys.device, non_blocking=True)

    def _drawn(self, layer: int, heads: int, tokens: int) -> Scores:
        """Return the scores on the CPU, which depend on nothing else."""
        return torch.rand(heads, tokens, generator=generator(self.seed, layer, tokens))


def generator(*numbers: int) -> torch.Generator:
    """Return a generator on the CPU that depends on these numbers only."""
    digest = hashlib.sha256("/".join(map(str, numbers)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7]))
