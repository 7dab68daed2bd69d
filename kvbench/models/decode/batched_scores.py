"""Cells that are cut alike but judged by different scores, side by side in one cache: what costs time is done once.

A layer of n such cells is one layer with n times the heads. Nothing in a cut by uniform heads looks across heads, so
each head is what it would be alone; only scores are computed cell by cell, over the heads of their own.
"""

from collections.abc import Hashable
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import ClassVar

import torch

from kvbench.cache.kv_cache import KVCache, LayerCache, Window
from kvbench.cache.shapes import Scores
from kvbench.eviction.incremental import IncrementalEviction
from kvbench.eviction.policy import Policy
from kvbench.eviction.pooling import Group, reduce_group
from kvbench.eviction.scores.score import Reduce, Score, ScoreInputs


@dataclass(frozen=True)
class BatchedScores(Score):
    """Each of `scores` judges as many heads as the others, those of its own cell, merged as the policy says."""

    scores: tuple[Score, ...]
    policy: Policy
    name: str = "abreast"
    inputs: ClassVar[ScoreInputs] = ScoreInputs(window=True)
    group: ClassVar[Group] = "mean"

    def __call__(self, layer: LayerCache, rows: Window | None, reduce: Reduce) -> Scores:
        """Scores [cache_heads, tokens] of a dense layer, merged over the groups already."""
        assert rows is not None
        parts, stored = [], layer.cache_heads // len(self.scores)
        for number, score in enumerate(self.scores):
            heads = rows.queries.shape[0] // len(self.scores)
            own = slice(number * heads, (number + 1) * heads)
            seen = replace(rows, queries=rows.queries[own], outputs=rows.outputs[own], lse=rows.lse[own])
            raw = score(_share(layer, number, len(self.scores)), seen, reduce)
            raw = raw.repeat_interleave(max(1, stored // raw.shape[0]), dim=0)
            parts.append(reduce_group(raw, self.policy.group_of(score.group), stored))
        return torch.cat(parts)


def kind(stepping: IncrementalEviction) -> Hashable | None:
    """What cells must have in common to go abreast; None for those that go alone."""
    policy, score = stepping.eviction.policy, stepping.eviction.score
    alone = (
        policy.heads.kind != "uniform"
        or policy.group == "layer_mean"
        or policy.phases is not None
        or score.inputs != BatchedScores.inputs
        or score.whole
        or type(score).refine is not Score.refine
        or type(score).weigh is not Score.weigh
    )
    return None if alone else (policy, stepping.capacity, stepping.decoding)


def abreast(steppings: list[IncrementalEviction]) -> IncrementalEviction:
    """One stepping for cells of one kind."""
    first = steppings[0]
    scores = tuple(stepping.eviction.score for stepping in steppings)
    return replace(first, eviction=replace(first.eviction, score=BatchedScores(scores, first.eviction.policy)))


def apart(cache: KVCache, cells: int) -> list[KVCache]:
    """The caches of so many cells that stand abreast, copied."""
    if cells == 1:
        return [cache]
    shares = range(cells)
    return [replace(cache, layers=tuple(_copied(_share(layer, i, cells)) for layer in cache.layers)) for i in shares]


def _share(layer: LayerCache, number: int, cells: int) -> LayerCache:
    """The heads of one cell, as views."""
    stored = layer.cache_heads // cells
    pairs = slice(layer.offsets[number * stored], layer.offsets[(number + 1) * stored])
    lengths = layer.lengths[number * stored : (number + 1) * stored]
    return replace(
        layer,
        query_heads=layer.query_heads // cells,
        keys=layer.keys[pairs],
        values=layer.values[pairs],
        positions=layer.positions[pairs],
        offsets=(0, *accumulate(lengths)),
        state={name: tensor[pairs] for name, tensor in layer.state.items()},
    )


def _copied(layer: LayerCache) -> LayerCache:
    state = {name: tensor.clone() for name, tensor in layer.state.items()}
    keys, values, positions = layer.keys.clone(), layer.values.clone(), layer.positions.clone()
    return replace(layer, keys=keys, values=values, positions=positions, state=state)
