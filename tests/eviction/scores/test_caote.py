"""CAOTE against removing each entry from the weighted mean, in float64."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kvbench.eviction.budget import TokenBudget
from kvbench.eviction.evict import Eviction
from kvbench.eviction.policy import Policy
from kvbench.eviction.pooling import Group, Pool
from kvbench.eviction.scores.attn import Cake
from kvbench.eviction.scores.host import Caote, CriticalKV, FastCaote
from kvbench.eviction.scores.keys import KeyDiff, KeyNorm
from kvbench.eviction.scores.obcache import ExactRemoval, OBCacheValue
from kvbench.eviction.scores.score import Score
from kvbench.eviction.scores.weighted import Lava
from tests.arrays import random_cache, random_layer


def removed(shares: Tensor, values: Tensor) -> Tensor:
    """|x without j - x| for each entry j of each head, by leaving it out."""
    mean = shares @ values
    errors = []
    for column in range(values.shape[0]):
        rest = shares.clone()
        rest[column] = 0
        errors.append((rest @ values / rest.sum() - mean).norm())
    return torch.stack(errors)


@pytest.mark.parametrize("host", [OBCacheValue(), Cake(gamma=3), Lava()], ids=lambda host: host.name)
def test_caote_is_the_change_of_the_weighted_mean(host: Score) -> None:
    cache = random_cache(40, layers=1)
    policy = Policy("p", window=8, pool=Pool("max", 7), recent=6, order=("pool", "group"))
    plain = Eviction(replace(policy, recent=0), host, TokenBudget(20)).rank(cache)[0].scores
    scores = Eviction(policy, Caote(host), TokenBudget(20)).rank(cache)[0].scores
    values = cache.layers[0].dense[1].double()
    for head, own in enumerate(plain.double()):
        assert torch.allclose(scores[head].double(), removed(own / own.sum(), values[head])[:34], rtol=1e-4)


def test_one_row_squared_is_the_exact_removal() -> None:
    """Per query head, where the host is the row itself."""
    cache = random_cache(40, layers=1)
    policy = Policy("p", window=1, layout="query_heads")
    caote = Eviction(policy, Caote(), TokenBudget(20)).rank(cache)[0].scores.square()
    exact = Eviction(policy, ExactRemoval(), TokenBudget(20)).rank(cache)[0].scores
    assert torch.allclose(caote, exact, rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize("group", ["mean", "max"])
@pytest.mark.parametrize("score", [Caote(), FastCaote()], ids=lambda score: score.name)
def test_query_heads_merge_their_errors_or_their_attention(score: Caote, group: Group) -> None:
    """Errors of query heads are those that a cache of query heads ranks by."""
    cache = random_cache(40, layers=1)
    policy = Policy("p", window=8, recent=6, sink=3, pool=Pool("max", 3), group=group)
    alone = replace(policy, layout="query_heads", group=None)
    by_head = (
        Eviction(alone, score, TokenBudget(20)).rank(cache)[0].scores.unflatten(0, (cache.layers[0].cache_heads, -1))
    )
    expected = by_head.mean(1) if group == "mean" else by_head.amax(1)
    errors = Eviction(policy, replace(score, merge="error"), TokenBudget(20)).rank(cache)[0].scores
    assert torch.allclose(errors, expected)
    assert not torch.allclose(errors, Eviction(policy, score, TokenBudget(20)).rank(cache)[0].scores)
    assert torch.equal(
        Eviction(alone, replace(score, merge="error"), TokenBudget(20)).rank(cache)[0].scores, by_head.flatten(0, 1)
    )


@pytest.mark.parametrize("host", [KeyNorm(), KeyDiff(), Caote(), FastCaote()], ids=lambda host: host.name)
def test_a_host_must_be_a_weight(host: Score) -> None:
    with pytest.raises(ValueError, match=rf"score\.host={host.name} is .*; choose another host of caote, e\.g\. attn"):
        Caote(host)


@pytest.mark.parametrize("score", [Caote(), FastCaote()], ids=lambda score: score.name)
def test_lone_and_missing_mass_are_finite(score: Caote) -> None:
    """One pair with all the mass is worth most; no mass at all makes every pair worth nothing."""
    layer = random_layer(30)
    lone = torch.zeros(2, 30)
    lone[:, 7] = 1
    scores = score.refine(lone, layer)
    assert scores.isfinite().all() and (scores.argmax(1) == 7).all()
    assert (score.refine(torch.zeros(2, 30), layer) == 0).all()


def test_the_largest_change_is_squared_where_the_norm_is() -> None:
    layer, alone = random_layer(20), torch.zeros(2, 20)
    alone[:, 7] = 3.0
    plain, squared = (Caote(squared=squared).refine(alone, layer)[:, 7] for squared in (False, True))
    torch.testing.assert_close(squared, plain.square())


def test_the_tokens_that_stay_count_among_the_first_where_that_is_asked_for() -> None:
    layer, ranked = random_layer(20), torch.rand(2, 12)
    stages = [CriticalKV(protected=protected).second_stage(ranked, layer, 5) for protected in (True, False)]
    assert [stage.protected for stage in stages] == [5, 0]
