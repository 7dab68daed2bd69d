"""Head allocation: how many candidates each cache head of one layer keeps.

In the variant `paper` a layer keeps exactly its share times the number of heads. A share above the number of candidates
keeps the whole layer.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch

from kvbench.cache.shapes import Ranked
from kvbench.eviction.allocation.allocation import Counts, Heads
from kvbench.eviction.allocation.shares import AllocationBudget, largest_remainder
from kvbench.eviction.ranking import Ranking, best_entries, by_stack
from kvbench.support.annotations import Help
from kvbench.support.errors import UserError
from kvbench.support.facts import UNSIGNED, Claim


@dataclass(frozen=True)
class SharedHeads(Heads):
    """The same positions in every head, by the mean of the scores over the heads: the official TOVA."""

    kind: Literal["shared"] = "shared"
    ragged: ClassVar[bool] = True

    def chooses(self, ranking: Ranking) -> Ranking:
        return ranking.shared


@dataclass(frozen=True)
class ChunkHeads(Heads):
    """ChunkKV (Liu et al. 2025, https://arxiv.org/abs/2502.00299): chunks of `size` tokens, the same in every head.

    Chunks are ordered by the mean of their scores over tokens and heads. What is left of the budget after the last
    whole chunk goes to the best tokens of the next. The last chunk of the candidates may be shorter.
    """

    kind: Literal["chunks"] = "chunks"
    size: Annotated[int, Help("B1: tokens of a chunk; kvpress: 20")] = 10
    ragged: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.size < 1:
            raise UserError(f"policy.heads.size={self.size}: a chunk has at least one token, e.g. 10")

    def chooses(self, ranking: Ranking) -> Ranking:
        shared, device = ranking.shared, ranking.scores.device
        chunks = (torch.arange(ranking.candidates, device=device) + ranking.first % self.size) // self.size
        lengths = torch.zeros_like(shared.scores).index_add_(1, chunks, torch.ones_like(shared.scores))

        def means(scores: Ranked) -> Ranked:
            return (torch.zeros_like(scores).index_add_(1, chunks, scores) / lengths)[:, chunks]

        return replace(shared.mapped(means), unpooled=shared.scores)


@dataclass(frozen=True)
class FlatHeads(Heads):
    """The best pairs of the layer, wherever they are: LAVa (Algorithm 1), H2O-max of KVzip.

    n_h = how many of the best H b pairs of the layer are of head h, with H heads and b the share of the layer per head.

    published_alpha: how much of a uniform split the published code mixes in; it counts in the variant `official` only.
    """

    kind: Literal["flat"] = "flat"
    published_alpha: Annotated[int | float, Help("variant official only")] = 0
    ragged: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_alpha(self.published_alpha, "published_alpha")

    def asks(self, heads: int, share: int, terms: AllocationBudget) -> tuple[int, int] | None:
        return 0, heads * share

    def __call__(self, ranking: Ranking, share: int, terms: AllocationBudget) -> tuple[int, ...]:
        if terms.variant == "official" and self.published_alpha:
            return MixHeads(alpha=self.published_alpha)(ranking, share, terms)
        pairs = len(ranking.scores) * share
        return ranking.available if pairs >= sum(ranking.available) else ranking.counts(pairs)


@dataclass(frozen=True)
class MixHeads(Heads):
    """AdaKV (Feng et al. 2024, https://arxiv.org/abs/2407.11550) as its code has it: a mixture of flat and uniform.

    n_h = (1 - alpha) f_h + alpha b, with f_h the number that a flat split gives head h and b the share of the layer per
    head.

    `official` rounds each head separately, so that sums are approximate. normalize: the scores of a head are multiplied
    by the part of their sum that its best `share` candidates have: an option of AdaKV's code, the default of
    KVCache-Factory's.
    """

    kind: Literal["mix"] = "mix"
    alpha: Annotated[
        int | float,
        Help("the share of the layer's budget that is split evenly (P1: KVCache-Factory's --floor never reaches it)"),
    ] = 0.2
    normalize: Annotated[
        bool, Help("A2: AdaKV's monkeypatch.py turns it off; true: KVCache-Factory's copies leave it on")
    ] = False
    ragged: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_alpha(self.alpha)

    def claims(self, policy: str) -> Iterator[Claim]:
        yield from super().claims(policy)
        if self.normalize:
            setting, needs = f"policy.heads.normalize=true of {policy}", {UNSIGNED: "scales by sums of scores"}
            yield Claim(setting, "policy.heads.normalize=false", needs)

    def asks(self, heads: int, share: int, terms: AllocationBudget) -> tuple[int, int] | None:
        return None if self.normalize else (0, heads * share)

    def __call__(self, ranking: Ranking, share: int, terms: AllocationBudget) -> tuple[int, ...]:
        pairs, available = len(ranking.scores) * share, ranking.available
        if pairs > sum(available):
            return available
        counts = (normalized(ranking, share) if self.normalize else ranking).counts(pairs)
        if terms.variant == "official":
            floor = int((terms.budget if terms.stale_floor else share) * self.alpha)
            mixed = [np.rint(np.float32(count * (1 - self.alpha)) + np.float32(floor)) for count in counts]
            return tuple(min(most, int(count)) for most, count in zip(available, mixed, strict=True))
        targets = [(1 - self.alpha) * count + self.alpha * share for count in counts]
        return largest_remainder(targets, pairs, available)


@dataclass(frozen=True)
class SafeguardHeads(Heads):
    """AdaKV's safeguard as in its paper: every head keeps a fixed number of its best pairs, the rest is split flat.

    That number is alpha (b + p) - p, or 0 if negative, with b the share of the layer per head and p the protected
    tokens.
    """

    kind: Literal["safeguard"] = "safeguard"
    alpha: int | float = 0.2
    ragged: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_alpha(self.alpha)

    def asks(self, heads: int, share: int, terms: AllocationBudget) -> tuple[int, int]:
        return max(0, int(self.alpha * (share + terms.protected)) - terms.protected), heads * share

    def __call__(self, ranking: Ranking, share: int, terms: AllocationBudget) -> tuple[int, ...]:
        least, pairs = self.asks(len(ranking.scores), share, terms)
        return ranking.available if pairs >= sum(ranking.available) else ranking.counts_beyond(least, pairs)


@dataclass(frozen=True)
class BinaryHeads(Heads):
    """A head keeps all tokens or only the protected ones: KVzip by head, DuoAttention (https://arxiv.org/abs/2410.10819).

    Heads are ranked by their best candidate. As many as fit the budget are kept whole; the rest is not spent.
    published_strict: whether in the variant `official` only heads are kept that are strictly better than the last one
    within the budget, as in KVzip's code.
    """

    kind: Literal["binary"] = "binary"
    published_strict: Annotated[bool, Help("variant official only")] = False
    whole: ClassVar[bool] = True
    ragged: ClassVar[bool] = True

    def __call__(self, ranking: Ranking, share: int, terms: AllocationBudget) -> tuple[int, ...]:
        (lengths,) = whole_heads([ranking], share, terms.candidates, self.strict(terms))
        return lengths

    def over_layers(self, rankings: Sequence[Ranking], terms: AllocationBudget) -> Counts:
        return whole_heads(rankings, terms.base, terms.candidates, self.strict(terms))

    def strict(self, terms: AllocationBudget) -> bool:
        """Return whether the last head within the budget is evicted too."""
        return self.published_strict and terms.variant == "official"


def normalized(ranking: Ranking, share: int) -> Ranking:
    """Return the ranking with the scores of each head scaled by the part of their sum that its best `share` have."""
    best = ranking.scores.gather(1, ranking.order[:, :share]).clamp_min(0).sum(dim=1, keepdim=True)
    mass = ranking.scores.clamp_min(0).sum(dim=1, keepdim=True)  # beyond a head's candidates is -inf
    scale = torch.where(mass > 0, best / mass, 1)
    return ranking.mapped(lambda scores: scores * scale)


def whole_heads(rankings: Sequence[Ranking], base: int, candidates: int, strict: bool) -> Counts:
    """Return the candidates of every head when whole heads compete for `base` KV pairs per head on average.

    Heads are ordered by their best score, then by their best unpooled score, then lower layer and head. With `strict`
    only heads are kept that score more than the last one within the budget. A head that no longer has all `candidates`
    is not whole.
    """
    heads = len(rankings[0].scores)
    if candidates == 0:
        return ((0,) * heads,) * len(rankings)
    best = [torch.stack((part.scores.amax(dim=1), part.unpooled.amax(dim=1))).cpu() for part in by_stack(rankings)]
    scores, unpooled = torch.cat(best, dim=1)
    complete = torch.tensor([count == candidates for ranking in rankings for count in ranking.available])
    scores = scores.masked_fill(~complete, -torch.inf)
    paid = min(int(complete.sum()), len(scores) * base // candidates)
    kept = torch.zeros(len(scores), dtype=torch.long)
    kept[best_entries(scores, unpooled, paid, strict)] = candidates
    return tuple(tuple(row) for row in kept.view(len(rankings), heads).tolist())


def _check_alpha(alpha: int | float, name: str = "alpha") -> None:
    if not 0 <= alpha <= 1:
        raise UserError(f"policy.heads.{name}={alpha}: allowed: 0 to 1, a fraction of what a head keeps, e.g. 0.2")
