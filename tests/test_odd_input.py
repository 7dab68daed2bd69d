"""Input at the edge: what comes out is defined, whatever the policy and the score."""

from dataclasses import replace
from functools import lru_cache
from itertools import product
from typing import Any

import pytest
import torch

from kvbench.budget import Tokens
from kvbench.cache import KVCache, LayerCache
from kvbench.cli.compose import options
from kvbench.eviction import Eviction
from tests.arrays import layer_of, random_cache
from tests.test_conformance import eviction, left_over

POLICIES, SCORES = options("policy"), options("score")
MATRIX = list(product(POLICIES, SCORES))
every = pytest.mark.parametrize(("policy", "score"), MATRIX, ids=lambda name: name)
each_part = pytest.mark.parametrize(
    ("policy", "score"), [*(("snapkv", score) for score in SCORES), *((policy, "recency") for policy in POLICIES)]
)
"""Where neither can see the other: every score once and every policy once."""


def combination(policy: str, score: str, budget: int, **fields: Any) -> Eviction | None:
    """A combination of conf/ with another budget and other fields; None for one that is refused when planned."""
    found = eviction(policy, score)
    return found and Eviction(replace(found.policy, **fields), found.score, Tokens(budget))


@each_part
@pytest.mark.parametrize("tokens", [1, 2, 7])
def test_a_prompt_shorter_than_window_and_budget_stays_whole(policy: str, score: str, tokens: int) -> None:
    if found := combination(policy, score, 40):
        cache = random_cache(tokens)
        assert found(cache) is cache


@every
def test_a_prompt_shorter_than_the_window_is_cut_by_the_rows_there_are(policy: str, score: str) -> None:
    """Twelve tokens, a window of up to 32, and little protected."""
    if found := combination(policy, score, 9, recent=2, sink=1):
        smaller = found(random_cache(12))
        assert 0 <= 9 * 2 * 3 - smaller.pairs < left_over(found.policy, 12)
        assert (smaller.lengths >= 3).all()


@every
def test_nothing_but_protected_tokens_leaves_one_candidate_out(policy: str, score: str) -> None:
    """The budget is what is protected, and so is all but one token."""
    if found := combination(policy, score, 29, sink=5, recent=24):
        smaller = found(random_cache(30, window=30))
        assert smaller.lengths.tolist() == [[29, 29]] * 3
        assert all(5 not in layer.positions.tolist() for layer in smaller.layers)


@every
def test_pairs_that_are_all_alike_are_chosen_the_same_way_every_time(policy: str, score: str) -> None:
    keys = values = torch.ones(2, 50, 10)
    same = KVCache(tuple(layer_of(torch.ones(6, 50, 10), keys, values, index) for index in range(3)), 50)
    if found := combination(policy, score, 40):
        first, again = found.decide(same), found.decide(same)
        assert 0 <= 40 * 2 * 3 - int(first.lengths.sum()) < left_over(found.policy, 50)
        assert all(torch.equal(left, right) for left, right in zip(first.kept, again.kept, strict=True))


def test_equal_scores_keep_the_oldest() -> None:
    """Rows that give every token the same weight: lower positions win, layer by layer and head by head."""
    keys, values = torch.zeros(2, 50, 10), torch.rand(2, 50, 10)
    same = KVCache((layer_of(torch.ones(6, 8, 10), keys, values),), 50)
    oldest = {"snapkv": [20, 20], "tova": [20, 20], "lava_uniform": [4 + 32, 4], "ada_snapkv": [4 + 29, 4 + 3]}
    for policy, lengths in oldest.items():
        found = combination(policy, "attn", 20, window=1, pool=None, recent=4)
        assert found is not None
        smaller = found(same)
        assert smaller.lengths.tolist() == [lengths]
        assert smaller.layers[0].positions.tolist() == [
            position for length in lengths for position in (*range(length - 4), *range(46, 50))
        ]


@each_part
@pytest.mark.parametrize(("part", "value"), [("keys", torch.nan), ("keys", -torch.inf), ("values", torch.inf)])
def test_numbers_that_are_none_are_refused_by_name(policy: str, score: str, part: str, value: float) -> None:
    """Even where the score does not look at them: what would stay could not be attended to."""
    if found := combination(policy, score, 20, recent=4, sink=0):
        cache = random_cache(40, window=40)
        spoilt = getattr(cache.layers[1], part).clone()
        spoilt[17, 3] = value
        layers = (cache.layers[0], replace(cache.layers[1], **{part: spoilt}), cache.layers[2])
        with pytest.raises(ValueError, match=rf"layer 1 holds NaN or inf in its {part}: nothing can be ranked"):
            found(KVCache(layers, 40))


@every
def test_saturated_attention_in_half_precision_is_ranked(policy: str, score: str) -> None:
    """One token has all the weight of every row: scores are numbers, and budgets are spent."""
    if found := combination(policy, score, 20, recent=4, sink=0):
        for dtype in (torch.bfloat16, torch.float16):
            smaller = found(KVCache(tuple(saturated(dtype, index) for index in range(3)), 40))
            assert 0 <= 20 * 2 * 3 - smaller.pairs < left_over(found.policy, 40)


@lru_cache
def saturated(dtype: torch.dtype, index: int) -> LayerCache:
    """Token 11 draws logits of 60 and more, the others about 0."""
    layer = random_cache(40, layers=1, seed=index, window=40).layers[0]
    keys, values = (part.clone() for part in layer.dense)
    queries = layer.windows[0].queries.clone()
    keys[..., 0], queries[..., 0] = 0, 1
    keys[:, 11, 0] = 200
    return layer_of(queries.to(dtype), keys.to(dtype), values.to(dtype), index)


def test_a_budget_that_cannot_hold_the_protected_tokens_says_so() -> None:
    found = combination("snapkv", "attn", 15)
    assert found is not None
    with pytest.raises(ValueError, match="cannot hold the 16 protected tokens of snapkv"):
        found(random_cache(60))


@pytest.mark.parametrize("variant", ["paper", "official"])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_budget_of_what_is_protected_is_spent(policy: str, variant: str) -> None:
    """No candidate may stay, in whatever way layers and heads share."""
    cache = random_cache(60, window=60)
    for score in ("attn", "lava", "caote"):
        if found := combination(policy, score, 16, recent=12, sink=4, variant=variant):
            lengths = found.decide(cache).lengths
            stale = policy == "lava" and variant == "official"  # its floor is a part of the whole budget
            assert (lengths >= 16).all() and ((lengths == 16).all() or stale)
