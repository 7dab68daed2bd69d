"""The heart of kvbench: scores -> lengths -> kept -> a smaller cache, every step an array that can be looked at.

It knows nothing about models, tasks or configuration:

    smaller = Eviction(policy, score, Tokens(1024))(cache)
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from kvbench.budget import Budget
from kvbench.cache import KVCache, LayerCache, compact
from kvbench.policy import Policy
from kvbench.scores.score import Score
from kvbench.shapes import Kept, Lengths, Ranked
from kvbench.shaping import shape


@dataclass(frozen=True)
class Ranking:
    """One layer's candidates: every column but the protected ones, which `first` and the width tell apart.

    `order` lists the candidates of each stored head from best to worst.
    """

    scores: Ranked
    order: Int[Tensor, "stored_heads tokens"]
    first: int


@dataclass(frozen=True)
class Decision:
    """What stays: `kept` and `lengths` by layer and stored head, `rankings` where anything had to be ranked."""

    kept: tuple[Kept, ...]
    lengths: Lengths
    rankings: tuple[Ranking, ...] | None


@dataclass(frozen=True)
class Eviction:
    """A function from a cache to a smaller one. Nothing is kept between calls."""

    policy: Policy
    score: Score
    budget: Budget

    def __call__(self, cache: KVCache) -> KVCache:
        """Evict. `cache` must hold every token; it is returned as it is when all of it stays as stored."""
        return self.cut(cache, self.decide(cache))

    def cut(self, cache: KVCache, decision: Decision) -> KVCache:
        """Carry out a decision: a compacted copy, or `cache` itself when everything stays as it is stored."""
        if decision.rankings is None and self.policy.layout == "kv_heads":
            return cache
        return compact(cache, decision.kept)

    def decide(self, cache: KVCache, rankings: Sequence[Ranking] | None = None) -> Decision:
        """Choose what stays; `rankings` may hand in those of `rank`, which do not depend on the budget.

        Raises ValueError when `check` does or a score is not a number.
        """
        self.check(cache)
        if self.keeps_all(cache):
            return self._keep_all(cache)
        tokens, pairs, policy = cache.seen, self.budget.of(cache.seen), self.policy
        rankings = self.rank(cache) if rankings is None else rankings
        shares = policy.layers(pairs - policy.protected, len(cache.layers))
        kept, lengths = [], []
        for ranking, share in zip(rankings, shares, strict=True):
            counts = torch.tensor(policy.heads(ranking.scores, share))
            kept.append(self._mark(ranking, counts, tokens))
            lengths.append(counts + policy.protected)
        return Decision(tuple(kept), torch.stack(lengths), tuple(rankings))

    def check(self, cache: KVCache) -> None:
        """Raise ValueError for a cache that was cut before, or a budget that cannot hold the protected tokens."""
        if (cache.lengths != cache.seen).any():
            raise ValueError(f"the cache holds {cache.pairs} pairs after {cache.seen} tokens: it was cut before")
        pairs = self.budget.of(cache.seen)
        if pairs < min(self.policy.protected, cache.seen):
            share = f"budget={self.budget} is {pairs} of {cache.seen} tokens and"
            raise ValueError(too_small(self.policy, pairs, share))

    def keeps_all(self, cache: KVCache) -> bool:
        """Whether the budget holds every token, so that nothing is scored."""
        return self.budget.of(cache.seen) >= cache.seen

    def rank(self, cache: KVCache) -> tuple[Ranking, ...]:
        """Score, shape and order the candidates of every layer."""
        return tuple(self._rank_layer(layer) for layer in cache.layers)

    def _rank_layer(self, layer: LayerCache) -> Ranking:
        policy = self.policy
        rows = layer.voting(policy.window) if self.score.evidence.window else None
        votable = slice(0, layer.lengths[0] - policy.recent)
        raw = self.score(layer, rows, policy.reduce)[:, votable]
        raw = raw.repeat_interleave(max(1, self._stored_heads(layer) // raw.shape[0]), dim=0)
        group, candidates = policy.group_of(self.score.group), slice(policy.sink, None)
        shaped = shape(raw, policy.pool, group, policy.order, layer.stored_heads)[:, candidates]
        if not shaped.isfinite().all():
            raise ValueError(f"score {self.score.name} of layer {layer.index} is not finite: NaN or inf in the cache")
        unpooled = shaped
        if policy.pool is not None:
            unpooled = shape(raw, None, group, policy.order, layer.stored_heads)[:, candidates]
        return Ranking(shaped, best_first(shaped, unpooled), policy.sink)

    def _mark(self, ranking: Ranking, counts: Int[Tensor, "stored_heads"], tokens: int) -> Kept:
        heads, candidates = ranking.order.shape
        device = ranking.order.device
        chosen = torch.arange(candidates, device=device) < counts.to(device)[:, None]
        kept = torch.ones(heads, tokens, dtype=torch.bool, device=device)
        kept[:, ranking.first : ranking.first + candidates].scatter_(1, ranking.order, chosen)
        return kept

    def _keep_all(self, cache: KVCache) -> Decision:
        heads = [self._stored_heads(layer) for layer in cache.layers]
        kept = tuple(torch.ones(count, cache.seen, dtype=torch.bool) for count in heads)
        return Decision(kept, torch.tensor([[cache.seen] * count for count in heads]), None)

    def _stored_heads(self, layer: LayerCache) -> int:
        return layer.query_heads if self.policy.layout == "query_heads" else layer.stored_heads


def best_first(scores: Ranked, unpooled: Ranked) -> Int[Tensor, "stored_heads tokens"]:
    """Columns from best to worst: higher score, then higher unpooled score, then lower position.

    Max pooling makes plateaus of equal scores; without a stated order the kept set would depend on the sort.
    """
    order = unpooled.argsort(dim=1, descending=True, stable=True)
    if unpooled is scores:
        return order
    return order.gather(1, scores.gather(1, order).argsort(dim=1, descending=True, stable=True))


def too_small(policy: Policy, pairs: int, what: str) -> str:
    """The sentence that refuses a budget below the protected tokens."""
    return (
        f"{what} cannot hold the {policy.protected} protected tokens of {policy.name} (policy.sink={policy.sink}, "
        f"policy.recent={policy.recent}): raise the budget to at least {policy.protected} tokens or protect fewer"
    )
