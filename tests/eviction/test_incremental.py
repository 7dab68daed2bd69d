"""Eviction over time: what a cut may not change, whatever the policy."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from kvbench.cache.attention import AttentionParams, attend_layer
from kvbench.cache.kv_cache import KVCache, LayerCache, ObservationWindow, joined
from kvbench.eviction.budget import TokenBudget
from kvbench.eviction.evict import Eviction
from kvbench.eviction.incremental import ACCUMULATED, Capacity, IncrementalEviction, capacity_after
from kvbench.eviction.policy import Policy
from kvbench.eviction.pooling import Pool
from kvbench.eviction.scores.attn import Attention
from kvbench.eviction.scores.obcache import OBCacheJoint
from kvbench.eviction.scores.recency import Recency
from kvbench.eviction.scores.score import Score
from kvbench.support.errors import UserError
from tests.arrays import random_cache

SCALING = 0.3
POLICIES = [
    Policy("h2o_obcache", window=40, recent=5, state="accumulate"),
    Policy("tova_obcache", window=1),
    Policy("snapkv", window=4, sink=2, recent=3, pool=Pool("max", 3)),
    Policy("cake_like", window=1, recent=4, pool=Pool("avg", 5), order=("pool", "group"), slot_order="score"),
]


def tokens(count: int, heads: int = 6, kv_heads: int = 2, seed: int = 7) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Queries, keys and values of new tokens, one at a time."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        yield (
            2 * torch.randn(heads, 1, 10, generator=generator),
            torch.randn(kv_heads, 1, 10, generator=generator),
            torch.randn(kv_heads, 1, 10, generator=generator) + 3,
        )


def begin(policy: Policy, score: Score, pairs: int, num_tokens: int = 40) -> tuple[IncrementalEviction, LayerCache]:
    """A prompt that was cut, and how it goes on."""
    cache = random_cache(num_tokens, layers=1, window=num_tokens)
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


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_the_capacity_is_kept_and_the_protected_stay(policy: Policy) -> None:
    evictor, layer = begin(policy, Attention(), 17)
    for position, token in enumerate(tokens(25), 40):
        layer, rows = read(layer, token, position)
        step = evictor.step(layer, rows)
        layer = step.layer
        assert layer.lengths == (17, 17)
        for head, positions in enumerate(layer.positions.view(2, 17).tolist()):
            assert len(set(positions)) == 17
            assert set(range(policy.sink)) <= set(positions)
            assert set(range(position + 1 - policy.recent, position + 1)) <= set(positions)
            worth = dict(zip(step.positions[head].tolist(), step.scores[head].tolist(), strict=True))
            (evicted,) = set(worth) - set(positions)
            assert worth[evicted] == min(score for score in worth.values() if score == score)


def test_a_running_score_is_the_sum_of_what_each_row_gave() -> None:
    """Computed again from the rows, pair by pair, with the softmax over what was cached at the time."""
    evictor, layer = begin(POLICIES[0], Attention(), 17)
    prompt = random_cache(40, layers=1, window=40).layers[0]
    raw = Attention()(prompt, prompt.windows[0], "sum").view(2, 3, 40).mean(dim=1)
    sums = [dict(enumerate(raw[head].tolist())) for head in range(2)]
    for position, token in enumerate(tokens(9), 40):
        layer, rows = read(layer, token, position)
        for head in range(2):
            span = slice(layer.offsets[head], layer.offsets[head + 1])
            logits = token[0][3 * head : 3 * head + 3, 0] @ layer.keys[span].T * SCALING
            for pair, weight in zip(layer.positions[span].tolist(), logits.softmax(-1).mean(0).tolist(), strict=True):
                sums[head][pair] = sums[head].get(pair, 0.0) + weight
        layer = evictor.step(layer, rows).layer
    for head, (positions, running) in enumerate(
        zip(layer.positions.view(2, 17).tolist(), layer.state[ACCUMULATED].view(2, 17), strict=True)
    ):
        assert torch.allclose(running, torch.tensor([sums[head][position] for position in positions]), rtol=1e-5)


@pytest.mark.parametrize("score", [Attention(), OBCacheJoint()], ids=lambda score: score.name)
def test_heads_of_different_capacity_do_not_see_each_other(score: Score) -> None:
    """A ragged layer is each of its heads alone."""
    policy = replace(POLICIES[0], recent=2)
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
    evictor, first = begin(POLICIES[0], Attention(), 60)
    stepwise, deferred, records = first, first, []
    for position, token in enumerate(tokens(6), 40):
        stepwise, rows = read(stepwise, token, position)
        stepwise = evictor.step(stepwise, rows).layer
        deferred, rows = read(deferred, token, position)
        records.append(rows)
    deferred = evictor.step(deferred, joined(records)).layer
    assert torch.allclose(stepwise.state[ACCUMULATED], deferred.state[ACCUMULATED], rtol=1e-5)


def test_a_short_prompt_grows_to_the_budget_first() -> None:
    evictor, layer = begin(Policy("streaming_llm", sink=2, recent=10, state="none"), Recency(), 12, num_tokens=7)
    for position, token in enumerate(tokens(20), 7):
        layer = evictor.step(layer.append(*token[1:], position), None).layer
        kept = list(range(position + 1)) if position < 12 else [0, 1, *range(position - 9, position + 1)]
        assert layer.positions.view(2, -1).tolist() == [kept] * 2


def test_slots_lie_in_the_order_of_their_last_ranking() -> None:
    evictor, layer = begin(replace(POLICIES[3], sink=1), Attention(), 17)
    eviction = evictor.eviction
    ranking = eviction.rank(random_cache(40, layers=1, window=40))[0]
    for head, positions in enumerate(layer.positions.view(2, 17).tolist()):
        assert positions == [0, *(ranking.order[head, :12] + 1).tolist(), *range(36, 40)]
    grown, rows = read(layer, next(tokens(1)), 40)
    step = evictor.step(grown, rows)
    for head, positions in enumerate(step.layer.positions.view(2, 17).tolist()):
        worth = dict(zip(step.positions[head].tolist(), step.scores[head].tolist(), strict=True))
        ranked = [worth[position] for position in positions[1:13]]
        assert ranked == sorted(ranked, reverse=True) and positions[13:] == list(range(37, 41))


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
    evictor, layer = begin(POLICIES[1], Attention(), 17)
    grown, rows = read(layer, next(tokens(1)), 40)
    with pytest.raises(ValueError, match="score attn of layer 0 is not finite"):
        evictor.step(grown, replace(rows, lse=rows.lse * torch.nan))


@pytest.mark.parametrize("pool", [None, Pool("max", 3)])
def test_an_answer_of_its_own_budget_keeps_its_best_pairs(pool: Pool | None) -> None:
    """By the attention of the newest token, written out, over pairs of the answer alone."""
    policy = Policy("tova_obcache", window=1, recent=1, pool=pool)
    evictor, layer = begin(policy, Attention(), 17)
    smaller = KVCache((layer,), 40)
    evictor, expected = evictor.with_answer_budget(smaller, 4), [list[int]() for _ in range(2)]
    for position, (queries, keys, values) in enumerate(tokens(12), 40):
        layer, rows = read(layer, (queries, keys, values), position)
        for head, held in enumerate(expected):
            held.append(position)
            own = layer.keys[layer.offsets[head] : layer.offsets[head + 1]]
            weights = (queries[3 * head : 3 * head + 3, 0] @ own.mT * SCALING).softmax(dim=1).mean(dim=0)
            pooled = weights if pool is None else F.max_pool1d(weights[None, :-1], 3, 1, 1)[0]
            answer = sorted(zip(pooled[17:].tolist(), weights[17:].tolist(), held[:-1], strict=False), reverse=True)
            expected[head] = sorted([place for *_, place in answer[:3]] + [position])
        layer = evictor.step(layer, rows).layer
        for head, positions in enumerate(layer.positions.split(layer.lengths)):
            assert torch.equal(positions[:17], smaller.layers[0].positions.split((17, 17))[head])
            assert positions[17:].tolist() == expected[head]


def test_an_answer_holds_its_protected_tokens() -> None:
    evictor, layer = begin(Policy("h2o_obcache", window=4, recent=5), Attention(), 17)
    reason = r"schedule\.answer_budget=4 cannot hold the 5 newest tokens that h2o_obcache protects \(policy\.recent=5\)"
    with pytest.raises(UserError, match=reason):
        evictor.with_answer_budget(KVCache((layer,), 40), 4)
