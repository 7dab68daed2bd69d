"""Eviction over time: what a cut may not change, whatever the policy."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kvbench.cache.attention import AttentionParams, attend_layer
from kvbench.cache.kv_cache import KVCache, LayerCache, ObservationWindow, joined
from kvbench.eviction.budget import TokenBudget
from kvbench.eviction.evict import Eviction
from kvbench.eviction.incremental import ACCUMULATED, Capacity, IncrementalEviction, capacity_after
from kvbench.eviction.policy import Policy
from kvbench.eviction.scores.attn import Attention
from kvbench.eviction.scores.obcache import OBCacheJoint
from kvbench.eviction.scores.score import Score
from kvbench.support.errors import UserError
from tests.arrays import random_cache

SCALING = 0.3
H2O = Policy("h2o_obcache", window=40, recent=5, state="accumulate")


def tokens(count: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Queries, keys and values of new tokens, one at a time."""
    generator = torch.Generator().manual_seed(7)
    for _ in range(count):
        yield (
            2 * torch.randn(6, 1, 10, generator=generator),
            torch.randn(2, 1, 10, generator=generator),
            torch.randn(2, 1, 10, generator=generator) + 3,
        )


def begin(policy: Policy, score: Score, pairs: int) -> tuple[IncrementalEviction, LayerCache]:
    """A prompt that was cut, and how it goes on."""
    cache = random_cache(40, layers=1, window=40)
    eviction = Eviction(policy, score, TokenBudget(pairs))
    decision = eviction.decide(cache)
    evictor = IncrementalEviction(eviction, capacity_after(eviction, cache, decision))
    return evictor, evictor.remember(cache, decision, eviction.evict(cache, decision)).layers[0]


def read(
    layer: LayerCache, token: tuple[Tensor, Tensor, Tensor], position: int
) -> tuple[LayerCache, ObservationWindow]:
    queries, keys, values = token
    grown = layer.append(keys, values, position)
    return grown, attend_layer(queries, grown, AttentionParams(SCALING))


@pytest.mark.parametrize("score", [Attention(), OBCacheJoint()], ids=lambda score: score.name)
def test_heads_of_different_capacity_do_not_see_each_other(score: Score) -> None:
    """A ragged layer is each of its heads alone."""
    policy = replace(H2O, recent=2)
    evictor, layer = begin(policy, score, 30)
    capacity: Capacity = {0: (11, 23)}
    together = IncrementalEviction(evictor.eviction, capacity)
    alone = [IncrementalEviction(evictor.eviction, {0: (pairs,)}) for pairs in capacity[0]]
    heads = [layer.of_heads([head]) for head in range(2)]
    for position, token in enumerate(tokens(8), 40):
        layer, rows = read(layer, token, position)
        layer = together.step(layer, rows).layer
        assert layer.lengths == capacity[0]
        for head in range(2):
            own = (token[0][3 * head : 3 * head + 3], token[1][[head]], token[2][[head]])
            grown, voting = read(heads[head], own, position)
            heads[head] = alone[head].step(grown, voting).layer
            span = slice(layer.offsets[head], layer.offsets[head + 1])
            assert torch.equal(layer.positions[span], heads[head].positions)
            assert torch.allclose(layer.state[ACCUMULATED][span], heads[head].state[ACCUMULATED], rtol=1e-5)


def test_one_cut_after_a_few_tokens_adds_up_the_same_as_one_after_each() -> None:
    """As long as nothing is evicted in between."""
    evictor, first = begin(H2O, Attention(), 60)
    stepwise, deferred, records = first, first, []
    for position, token in enumerate(tokens(6), 40):
        stepwise, rows = read(stepwise, token, position)
        stepwise = evictor.step(stepwise, rows).layer
        deferred, rows = read(deferred, token, position)
        records.append(rows)
    deferred = evictor.step(deferred, joined(records)).layer
    assert torch.allclose(stepwise.state[ACCUMULATED], deferred.state[ACCUMULATED], rtol=1e-5)


@pytest.mark.parametrize(
    ("policy", "score", "reason"),
    [
        (Policy("p", state="none"), Attention(), "policy.state=none, but score attn reads observed queries"),
        (Policy("p", sink=4, recent=9), Attention(), "a cache of 12 tokens cannot hold the 13 protected tokens"),
    ],
    ids=lambda value: getattr(value, "state", None),
)
def test_what_cannot_be_is_refused(policy: Policy, score: Score, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        IncrementalEviction(Eviction(policy, score, TokenBudget(12)), {0: (12, 12)})


def test_a_score_that_is_no_number_is_refused() -> None:
    evictor, layer = begin(Policy("tova_obcache", window=1), Attention(), 17)
    grown, rows = read(layer, next(tokens(1)), 40)
    with pytest.raises(ValueError, match="score attn of layer 0 is not finite"):
        evictor.step(grown, replace(rows, lse=rows.lse * torch.nan))


def test_an_answer_holds_its_protected_tokens() -> None:
    evictor, layer = begin(Policy("h2o_obcache", window=4, recent=5), Attention(), 17)
    reason = r"schedule\.answer_budget=4 cannot hold the 5 newest tokens that h2o_obcache protects \(policy\.recent=5\)"
    with pytest.raises(UserError, match=reason):
        evictor.with_answer_budget(KVCache((layer,), 40), 4)


def test_an_answer_to_a_prompt_shorter_than_the_first_tokens_that_stay_has_room_for_them() -> None:
    cache = random_cache(3, layers=1, window=3)
    eviction = Eviction(Policy("p", sink=4, recent=2), Attention(), TokenBudget(17))
    evictor = IncrementalEviction(eviction, 17).with_answer_budget(cache, 2)
    assert evictor.limits(cache.layers[0]) == (6, 6)
    longer = random_cache(9, layers=1, window=9)
    assert IncrementalEviction(eviction, 17).with_answer_budget(longer, 2).limits(longer.layers[0]) == (11, 11)
