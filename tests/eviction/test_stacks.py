"""Layers in a stack are ranked, counted and marked as each by itself, on a CPU with the same bits of all sums."""

from dataclasses import replace

import pytest
import torch

from kvbench.cache.kv_cache import KVCache, LayerCache, from_dense
from kvbench.eviction.allocation.heads import BinaryHeads, ChunkHeads, FlatHeads, MixHeads, SafeguardHeads, SharedHeads
from kvbench.eviction.allocation.layers import EntropyLayers, GlobalLayers, LazyLayers, PreferenceLayers
from kvbench.eviction.budget import TokenBudget
from kvbench.eviction.evict import Eviction, is_separate
from kvbench.eviction.policy import Policy
from kvbench.eviction.pooling import Pool
from kvbench.eviction.ranking import joined
from kvbench.eviction.scores.attn import Attention, AttentionMax, Cake
from kvbench.eviction.scores.host import CriticalKV
from kvbench.eviction.scores.keys import KeyDiff, KeyNorm, LagKV
from kvbench.eviction.scores.obcache import ExactRemoval, ExactZeroed, OBCacheJoint, OBCacheKey, OBCacheValue
from kvbench.eviction.scores.recency import Recency
from kvbench.eviction.scores.score import Score
from kvbench.eviction.scores.weighted import Finch, Lava, Vatp
from kvbench.support.errors import UserError
from tests.arrays import random_cache

WINDOW = Policy("window", window=8, recent=8, pool=Pool("avg", 5), order=("pool", "group"))
POLICIES = {
    "uniform": WINDOW,
    "a mean over the layer": Policy("tova", window=1, recent=1, group="layer_mean"),
    "shared heads": replace(WINDOW, heads=SharedHeads()),
    "chunks": replace(WINDOW, heads=ChunkHeads(size=3)),
    "flat": replace(WINDOW, heads=FlatHeads()),
    "mix": replace(WINDOW, heads=MixHeads(alpha=0.2)),
    "normalized mix": replace(WINDOW, heads=MixHeads(alpha=0.2, normalize=True)),
    "safeguard": replace(WINDOW, heads=SafeguardHeads(alpha=0.7)),
    "layers by their scores": replace(WINDOW, layers=GlobalLayers()),
    "whole heads": replace(WINDOW, layers=GlobalLayers(), heads=BinaryHeads()),
    "layers by entropy": replace(WINDOW, layers=EntropyLayers(), heads=FlatHeads()),
    "layers by preference": replace(WINDOW, layers=PreferenceLayers()),
    "lazy layers": replace(WINDOW, layers=LazyLayers()),
    "query heads": replace(WINDOW, layout="query_heads"),
    "a window that ends earlier": replace(WINDOW, window_skips=3),
}
SCORES = (
    *(Attention(), AttentionMax(), Cake(), Finch(), Lava(), Vatp(), KeyNorm(), KeyDiff(), LagKV(sink=2, lag=8)),
    *(OBCacheValue(), OBCacheKey(), OBCacheJoint(), ExactRemoval(), ExactZeroed(), Recency()),
)


def test_rankings_of_layers_that_were_joined_are_those_of_the_layers() -> None:
    """As on a GPU, where several layers are decided about at once: scores, ties and the second stage of each."""
    layers = Eviction(WINDOW, CriticalKV(), TokenBudget(20)).rank(random_cache(50, layers=3, window=8))
    for one, other in zip(layers, joined(layers).by_layer(), strict=True):
        assert one.layers == other.layers == 1 and one.second is not None and other.second is not None
        assert torch.equal(one.scores, other.scores) and torch.equal(one.unpooled, other.unpooled)
        assert torch.equal(one.second.scores, other.second.scores) and one.second.part == other.second.part
        counts = torch.tensor([9, 12])
        assert torch.equal(one.order_for(counts), other.order_for(counts))


def stacked(cache: KVCache, *sizes: int) -> KVCache:
    """The cache with stacks of so many layers."""
    layers, stacks = list(cache.evictable), []
    for size in sizes:
        part = [layers.pop(0) for _ in range(size)]
        keys, values = (torch.cat([layer.dense[place] for layer in part]) for place in (0, 1))
        heads, windows = sum(layer.query_heads for layer in part), []
        for first, *others in zip(*(layer.windows for layer in part), strict=True):
            names = ("queries", "outputs", "lse")
            joined = {name: torch.cat([getattr(window, name) for window in (first, *others)]) for name in names}
            windows.append(replace(first, **joined))
        stacks.append(replace(from_dense(part[0].index, heads, keys, values, tuple(windows)), layers=size))
    return replace(cache, stacks=tuple(stacks))


CACHE = random_cache(60, layers=5, window=12)
IN_STACKS = stacked(CACHE, 3, 2)


def assert_equal(eviction: Eviction, rounding: float = 0.0) -> None:
    """rounding: by how much scores may differ, relative to each."""
    ranked = eviction.rank(IN_STACKS)
    assert [stack.layers for stack in ranked.stacks] == [5], "scored in stacks of 3 and 2, decided in one"
    for ranking, alone in zip(ranked, eviction.rank(CACHE), strict=True):
        for numbers, expected in ((ranking.scores, alone.scores), (ranking.unpooled, alone.unpooled)):
            torch.testing.assert_close(numbers, expected, rtol=rounding, atol=0)
        assert ranking.layer_weight == alone.layer_weight
    decision, alone = eviction.decide(IN_STACKS, ranked), eviction.decide(CACHE)
    assert torch.equal(decision.lengths, alone.lengths)
    for kept, mask in zip(decision.kept, alone.kept, strict=True):
        assert torch.equal(kept, mask)


@pytest.mark.parametrize("name", POLICIES)
def test_policies(name: str) -> None:
    assert_equal(Eviction(POLICIES[name], Attention(), TokenBudget(31)))


@pytest.mark.parametrize("score", SCORES, ids=lambda score: score.name)
def test_scores(score: Score) -> None:
    assert is_separate(score)
    heads = FlatHeads() if not score.signed else WINDOW.heads
    # A sigmoid rounds the end of an array, which no vector of the processor covers, otherwise than the rest of it.
    rounding = 2.0**-22 if isinstance(score, ExactZeroed) else 0.0
    assert_equal(Eviction(replace(WINDOW, heads=heads), score, TokenBudget(25)), rounding)


def test_a_score_that_replaces_functions_declares_it_anew() -> None:
    class ByLayer(Attention):
        def __call__(self, layer: LayerCache, *rest: object) -> torch.Tensor:
            return super().__call__(layer, *rest) * layer.index  # type: ignore[arg-type]

    assert not is_separate(ByLayer())
    eviction = Eviction(WINDOW, ByLayer(), TokenBudget(20))
    assert [stack.layers for stack in eviction.rank(IN_STACKS).stacks] == [1] * 5


def test_the_layer_that_is_not_finite_is_named() -> None:
    keys = CACHE.layers[4].keys.clone()
    keys[7] = torch.nan
    broken = replace(CACHE, layers=(*CACHE.layers[:4], replace(CACHE.layers[4], keys=keys)))
    with pytest.raises(UserError, match="layer 4 holds NaN or inf in its keys"):
        Eviction(WINDOW, Attention(), TokenBudget(20))(stacked(broken, 3, 2))
