"""Chunks of tokens that stay or go together, but for important ones whose scores are uneven."""

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from kvbench.eviction.allocation.allocation import Heads
from kvbench.eviction.allocation.heads import ChunkHeads
from kvbench.eviction.ranking import Ranking
from kvbench.support.annotations import Help
from kvbench.support.errors import UserError

EPSILON = 1e-8
"""What the published code adds to sums and under logarithms."""


@dataclass(frozen=True)
class GatedChunkHeads(Heads):
    """ChunkKV with a gate: an important chunk whose scores are uneven gives only its best tokens at first.

    Chunks are ordered as in `chunks`. One is important if its mean is at least the median of the chunks, and uneven if
    the entropy of its scores, divided by the logarithm of its length, is below their median. An uneven important chunk
    gives its best `spiky` tokens in its turn. Its other tokens come after all chunks, by their scores. Scores of a
    chunk that has negative ones are raised by its least score for the entropy.
    """

    kind: Literal["gated_chunks"] = "gated_chunks"
    size: Annotated[int, Help("tokens of a chunk")] = 10
    spiky: Annotated[int, Help("tokens that an important chunk of uneven scores gives in its turn")] = 4

    def __post_init__(self) -> None:
        if not 1 <= self.spiky < self.size:
            raise UserError(f"policy.heads.spiky={self.spiky}: allowed: 1 to {self.size - 1}, fewer than a chunk has")

    def chooses(self, ranking: Ranking) -> Ranking:
        chunked, offset = ChunkHeads(size=self.size).chooses(ranking), ranking.first % self.size
        if not ranking.candidates:
            return chunked
        ends = offset, -(offset + ranking.candidates) % self.size
        scores = F.pad(chunked.unpooled, ends).unflatten(1, (-1, self.size))
        present = F.pad(torch.ones_like(chunked.unpooled), ends).bool().view(scores.shape)
        means = scores.sum(dim=2) / present.sum(dim=2)
        evenness = _evenness(scores, present)
        gated = (means >= means.median(dim=1, keepdim=True).values) & (
            evenness < evenness.median(dim=1, keepdim=True).values
        )
        best_first = scores.masked_fill(~present, -torch.inf).argsort(dim=2, descending=True, stable=True)
        later = gated[..., None] & (best_first.argsort(dim=2) >= self.spiky)
        later = later.flatten(1)[:, offset : offset + ranking.candidates]
        return replace(chunked, scores=chunked.scores.masked_fill(later, -torch.inf))


def _evenness(
    scores: Float[Tensor, "cache_heads chunks size"], present: Bool[Tensor, "cache_heads chunks size"]
) -> Float[Tensor, "cache_heads chunks"]:
    """Return the entropy of the scores of each chunk, as a part of the most for its number of tokens; 0 for one
    token.
    """
    least = scores.masked_fill(~present, torch.inf).amin(dim=2, keepdim=True).clamp_max(0)
    raised = torch.where(present, scores - least, 0)
    parts = raised / (raised.sum(dim=2, keepdim=True) + EPSILON)
    entropy = -(parts * (parts + EPSILON).log()).sum(dim=2)
    lengths = present.sum(dim=2)
    return torch.where(lengths > 1, (entropy / lengths.log()).clamp(0, 1), 0)
