"""Divide the budget: how many candidates each cache head of each layer keeps."""

from collections.abc import Sequence

import torch

from kvbench.eviction.allocation.heads import BinaryHeads, Heads, whole_heads
from kvbench.eviction.allocation.layers import Layers
from kvbench.eviction.allocation.shares import BudgetInfo
from kvbench.eviction.ranking import Ranking, best_entries

Counts = tuple[tuple[int, ...], ...]
"""Candidates kept, by layer and cache head."""


def allocate(layers: Layers, heads: Heads, rankings: Sequence[Ranking], terms: BudgetInfo) -> Counts:
    """Divide the budget over the layers, then over the heads of each layer.

    With `global` layers all KV pairs of all layers compete with each other, or all heads if heads are `binary`.
    """
    if layers.kind == "global":
        if isinstance(heads, BinaryHeads):
            return whole_heads(rankings, terms.base, heads.strict(terms))
        return best_pairs(rankings, terms)
    layer_weights = [ranking.layer_weight for ranking in rankings]
    layer_shares = layers(layer_weights, terms)
    return tuple(heads(ranking, share, terms) for ranking, share in zip(rankings, layer_shares, strict=True))


def best_pairs(rankings: Sequence[Ranking], terms: BudgetInfo) -> Counts:
    """Keep the best KV pairs of all layers and heads.

    `official` is KVzip's kvcache.py: a KV pair is kept if it is strictly better than the last one within the budget.
    """
    heads, candidates = rankings[0].scores.shape
    pairs = len(rankings) * heads * terms.base
    scores = torch.cat([ranking.scores.flatten().cpu() for ranking in rankings])
    unpooled = torch.cat([ranking.unpooled.flatten().cpu() for ranking in rankings])
    kept = best_entries(scores, unpooled, pairs, strict=terms.variant == "official")
    counts = (kept // max(1, candidates)).bincount(minlength=len(rankings) * heads)
    return tuple(tuple(row) for row in counts.view(len(rankings), heads).tolist())
