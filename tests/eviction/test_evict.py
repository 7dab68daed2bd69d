"""Eviction as a function: budgets spent exactly, protected tokens kept, ties broken as stated, nothing shared."""

from dataclasses import replace

import pytest
import torch

from kvbench.eviction.allocation.heads import FlatHeads
from kvbench.eviction.allocation.layers import EntropyLayers
from kvbench.eviction.budget import TokenBudget, parse_budget
from kvbench.eviction.evict import Eviction, keep_mask
from kvbench.eviction.policy import Policy
from kvbench.eviction.pooling import Pool
from kvbench.eviction.ranking import Ranking, best_first
from kvbench.eviction.scores.attn import Attention
from kvbench.eviction.scores.random import Random
from kvbench.eviction.scores.weighted import Lava
from tests.arrays import layer_of, random_cache


def test_kept_pairs_are_those_of_the_cache() -> None:
    """Keys, values and positions of every kept pair are bit-equal to the originals, per layout."""
    cache = random_cache(50)
    for layout, group in (("kv_heads", 1), ("query_heads", 3)):
        smaller = Eviction(Policy("p", layout=layout), Attention(), TokenBudget(9))(cache)
        for layer, full in zip(smaller.layers, cache.layers, strict=True):
            keys, values = full.dense
            for head, (start, stop) in enumerate(zip(layer.offsets, layer.offsets[1:], strict=False)):
                positions = layer.positions[start:stop]
                assert positions.tolist() == sorted(positions.tolist())
                assert torch.equal(layer.keys[start:stop], keys[head // group, positions])
                assert torch.equal(layer.values[start:stop], values[head // group, positions])


def test_a_budget_that_holds_everything_ranks_nothing() -> None:
    """The cache itself comes back, even where the score could not be computed."""
    cache = random_cache(20, layers=1)
    broken = layer_of(*(part * float("nan") for part in (cache.layers[0].windows[0].queries, *cache.layers[0].dense)))
    cache = type(cache)((broken,), 20)
    eviction = Eviction(Policy("p", window=64), Attention(), TokenBudget(20))
    assert eviction(cache) is cache
    assert eviction.decide(cache).rankings is None
    with pytest.raises(ValueError, match="layer 0 holds NaN or inf in its keys"):
        Eviction(Policy("p"), Attention(), TokenBudget(19))(cache)


def test_published_lava_evicts_where_the_budget_is_the_whole_prompt() -> None:
    """Layers with more than the mean entropy stay whole, and the others do not get what these cannot use."""
    even, short = random_cache(60, layers=2), random_cache(8, layers=2)
    queries, (keys, values) = even.layers[0].windows[0].queries, even.layers[0].dense
    sharp = layer_of(queries, 5 * keys, values)  # of little entropy
    cache = even.with_evictable([sharp, even.layers[1]])
    lava = Policy("lava", window=8, recent=8, heads=FlatHeads(published_alpha=0.2), layers=EntropyLayers())
    official = Eviction(replace(lava, variant="official"), Lava(), TokenBudget(60))
    assert Eviction(lava, Lava(), TokenBudget(60))(cache) is cache
    whole = (official.decide(cache).lengths == 60).all(dim=1)
    assert whole.tolist() == [False, True]
    assert official(short) is short  # there are no candidates


def test_protected_tokens_must_fit() -> None:
    """A share that is too small for this prompt names the numbers and the way out."""
    with pytest.raises(ValueError, match=r"budget=0\.1 is 5 of 50 tokens.*16 protected.*at least 16"):
        Eviction(Policy("h2o_obcache", recent=16), Attention(), parse_budget("0.1"))(random_cache(50))
    exactly = Eviction(Policy("h2o_obcache", recent=16), Attention(), TokenBudget(16))(random_cache(50))
    assert all(set(layer.positions.tolist()) == set(range(34, 50)) for layer in exactly.layers)


def test_a_budget_that_cannot_hold_the_head_names_the_span_that_need_not() -> None:
    policy = Policy("kvzip", sink=26, recent=4)
    message = r"budget=0\.1 is 6 of 59 tokens.*30 protected.*or use policy\.budget_span=context"
    with pytest.raises(ValueError, match=message):
        Eviction(policy, Attention(), parse_budget("0.1"))(random_cache(59))
    message = r"budget=0\.1 is 3 of 33 tokens and cannot hold the 4 protected tokens of kvzip \(policy\.recent=4\)"
    with pytest.raises(ValueError, match=message):
        Eviction(replace(policy, budget_span="context"), Attention(), parse_budget("0.1"))(random_cache(59))


def test_ties_fall_to_the_unpooled_score_then_to_the_lower_position() -> None:
    """Order among equals is stated, not left to the sort."""
    pooled = torch.tensor([[1.0, 2.0, 2.0, 2.0, 1.0, 2.0]])
    unpooled = torch.tensor([[0.0, 1.0, 2.0, 1.0, 5.0, 1.0]])
    assert best_first(pooled, unpooled).tolist() == [[2, 1, 3, 5, 4, 0]]
    flat = torch.zeros(2, 40)
    assert best_first(flat, flat).tolist() == [list(range(40))] * 2


def test_a_mask_is_true_for_the_best_of_each_head() -> None:
    scores = torch.randint(0, 5, (3, 20), generator=torch.Generator().manual_seed(0)).float()
    ranking, counts = Ranking(scores, scores, 2), torch.tensor([0, 7, 20])
    kept = keep_mask(ranking, counts, 25)
    assert kept[:, :2].all() and kept[:, 22:].all() and torch.equal(ranking.order, best_first(scores, scores))
    for head, (count, order) in enumerate(zip(counts.tolist(), ranking.order, strict=True)):
        assert kept[head, 2:22].nonzero()[:, 0].tolist() == order[:count].sort().values.tolist()


def test_a_smaller_budget_keeps_a_subset() -> None:
    """Rankings do not depend on the budget, and handing one in changes nothing."""
    cache = random_cache(80)
    policy = Policy("snapkv", pool=Pool("max", 7), recent=8)
    rankings = Eviction(policy, Attention(), TokenBudget(10)).rank(cache)
    before = None
    for pairs in (10, 20, 40):
        eviction = Eviction(policy, Attention(), TokenBudget(pairs))
        kept = eviction.decide(cache).kept
        shared = eviction.decide(cache, rankings).kept
        assert all(torch.equal(left, right) for left, right in zip(kept, shared, strict=True))
        if before is not None:
            assert all((small <= large).all() for small, large in zip(before, kept, strict=True))
        before = kept


def test_the_record_of_just_so_many_rows_votes() -> None:
    """Where several windows were recorded, none is sliced out of another."""
    (layer,) = random_cache(60, layers=1, window=12).layers
    own = replace(layer.observed(4), lse=layer.observed(4).lse + 1)
    both = replace(layer, windows=(*layer.windows, own))
    assert both.observed(4) is not layer.windows[0] and torch.equal(both.observed(4).lse, own.lse)
    assert torch.equal(both.observed(5).lse, layer.observed(5).lse)


def test_a_cache_is_cut_once() -> None:
    """Columns of a compacted cache are not positions any more."""
    eviction = Eviction(Policy("p"), Attention(), TokenBudget(20))
    with pytest.raises(ValueError, match="the cache holds 120 KV pairs after 60 tokens: it was evicted from before"):
        eviction(eviction(random_cache(60)))


def test_key_only_scores_are_spread_over_query_heads_in_order() -> None:
    """Query head h keeps what KV head h // group keeps."""
    cache = random_cache(50)
    shared = Eviction(Policy("p"), Random(), TokenBudget(9))(cache)
    apart = Eviction(Policy("p", layout="query_heads"), Random(), TokenBudget(9))(cache)
    for left, right in zip(shared.layers, apart.layers, strict=True):
        assert torch.equal(left.positions.view(2, 9).repeat_interleave(3, 0), right.positions.view(6, 9))
