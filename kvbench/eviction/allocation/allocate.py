"""From rankings to lengths: what each stored head of each layer keeps of its candidates."""

from collections.abc import Sequence

from kvbench.eviction.allocation.heads import BinaryHeads, Heads, whole_heads
from kvbench.eviction.allocation.layers import Layers
from kvbench.eviction.allocation.shares import BudgetInfo
from kvbench.eviction.ranking import Ranking, across_layers

Counts = tuple[tuple[int, ...], ...]
"""Candidates kept, by layer and stored head."""


def allocate(layers: Layers, heads: Heads, rankings: Sequence[Ranking], terms: BudgetInfo) -> Counts:
    """Split the budget over the layers, then over the heads of each.

    Where layers are `global` all pairs, or with heads `binary` all heads, compete with each other.
    """
    if layers.kind == "global":
        if isinstance(heads, BinaryHeads):
            return whole_heads(rankings, terms.base, heads.strict(terms))
        return best_pairs(rankings, terms)
    layer_weights = [ranking.layer_weight for ranking in rankings]
    parts = layers(layer_weights, terms)
    return tuple(heads(ranking, part, terms) for ranking, part in zip(rankings, parts, strict=True))


def best_pairs(rankings: Sequence[Ranking], terms: BudgetInfo) -> Counts:
    """One ranking over all layers and heads.

    `official` is KVzip's kvcache.py: a pair stays if it is strictly better than the last one that the budget pays for.
    """
    heads, candidates = rankings[0].scores.shape
    pairs = len(rankings) * heads * terms.base
    scores, order = across_layers(rankings)
    kept = order[:pairs]
    if terms.variant == "official" and pairs:
        kept = kept[scores[kept] > scores[kept[-1]]]
    counts = (kept // max(1, candidates)).bincount(minlength=len(rankings) * heads)
    return tuple(tuple(row) for row in counts.view(len(rankings), heads).tolist())
