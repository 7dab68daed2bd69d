"""One cache for several cells that differ only in their score, so that shared work is done once.

A layer of n such cells is one layer with n times the heads. An eviction with uniform heads never compares heads, so the
result is the same as for separate caches. Only scores are computed cell by cell, each over the heads of its cell.
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
    """The scores of several cells: each is computed over the heads of its own cell and reduced as the policy says."""

    scores: tuple[Score, ...]
    policy: Policy
    name: str = "batched"
    inputs: ClassVar[ScoreInputs] = ScoreInputs(window=True)
    group: ClassVar[Group] = "mean"

    def __call__(self, layer: LayerCache, rows: Window | None, reduce: Reduce) -> Scores:
        """Scores [cache_heads, tokens] of a dense layer, merged over the groups already."""
        assert rows is not None
        parts, cache_heads = [], layer.cache_heads // len(self.scores)
        for number, score in enumerate(self.scores):
            heads = rows.queries.shape[0] // len(self.scores)
            cell = slice(number * heads, (number + 1) * heads)
            window = replace(rows, queries=rows.queries[cell], outputs=rows.outputs[cell], lse=rows.lse[cell])
            raw = score(_share(layer, number, len(self.scores)), window, reduce)
            raw = raw.repeat_interleave(max(1, cache_heads // raw.shape[0]), dim=0)
            parts.append(reduce_group(raw, self.policy.group_of(score.group), cache_heads))
        return torch.cat(parts)


def sharing_key(stepping: IncrementalEviction) -> Hashable | None:
    """The key that cells must have in common to share a cache; None for cells that need separate ones."""
    policy, score = stepping.eviction.policy, stepping.eviction.score
    separate = (
        policy.heads.kind != "uniform"
        or policy.group == "layer_mean"
        or policy.phases is not None
        or score.inputs != BatchedScores.inputs
        or score.whole
        or type(score).refine is not Score.refine
        or type(score).weigh is not Score.weigh
    )
    return None if separate else (policy, stepping.capacity, stepping.decoding)


def merge_cells(steppings: list[IncrementalEviction]) -> IncrementalEviction:
    """One eviction for cells of equal `sharing_key`."""
    first = steppings[0]
    scores = tuple(stepping.eviction.score for stepping in steppings)
    return replace(first, eviction=replace(first.eviction, score=BatchedScores(scores, first.eviction.policy)))


def split_cells(cache: KVCache, cells: int) -> list[KVCache]:
    """The caches of so many cells that share one, copied."""
    if cells == 1:
        return [cache]

    def share(layer: LayerCache, number: int) -> LayerCache:
        heads = layer.cache_heads // cells
        return layer.of_heads(range(number * heads, (number + 1) * heads))

    return [replace(cache, layers=tuple(share(layer, number) for layer in cache.layers)) for number in range(cells)]


def _share(layer: LayerCache, number: int, cells: int) -> LayerCache:
    """The heads of one cell, as views."""
    cache_heads = layer.cache_heads // cells
    pairs = slice(layer.offsets[number * cache_heads], layer.offsets[(number + 1) * cache_heads])
    lengths = layer.lengths[number * cache_heads : (number + 1) * cache_heads]
    return replace(
        layer,
        query_heads=layer.query_heads // cells,
        keys=layer.keys[pairs],
        values=layer.values[pairs],
        positions=layer.positions[pairs],
        offsets=(0, *accumulate(lengths)),
        state={name: tensor[pairs] for name, tensor in layer.state.items()},
    )
