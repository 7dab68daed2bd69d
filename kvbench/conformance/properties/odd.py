"""What input at the edge must do, whatever the policy and the score."""

from dataclasses import replace
from functools import lru_cache

import torch

from kvbench.cache.kv_cache import KVCache, LayerCache
from kvbench.conformance.properties.inputs import (
    HEAD_DIM,
    HEADS,
    KV_HEADS,
    LAYERS,
    evicting,
    layer_of,
    left_over,
    masks,
    random_cache,
    recorded,
    require,
)
from kvbench.eviction.policy import Policy
from kvbench.eviction.scores.score import Score

SPOILT = (("keys", torch.nan), ("keys", -torch.inf), ("values", torch.inf))


def short_prompts_stay_whole(policy: Policy, score: Score) -> None:
    """Shorter than window and budget: nothing is scored, and nothing copied."""
    for tokens in (1, 2, 7):
        cache = recorded(tokens)
        require(
            evicting(policy, score, 40, tokens, layout="kv_heads")(cache) is cache,
            f"a prompt of {tokens} tokens is cut",
        )


def window_may_be_longer_than_the_prompt(policy: Policy, score: Score) -> None:
    """Twelve tokens are cut by the rows there are, with little protected."""
    eviction = evicting(policy, score, 9, 12, sink=1, recent=2)
    smaller = eviction(recorded(12))
    _spent(9 * len(smaller.lengths[0]) * LAYERS - smaller.pairs, left_over(eviction.policy, 12))
    require((smaller.lengths >= 3).all(), "protected tokens are evicted")


def one_candidate_may_be_left_out(policy: Policy, score: Score) -> None:
    """The budget is what is protected, and so is all but one token."""
    smaller = evicting(policy, score, 29, 30, sink=5, recent=24)(recorded(30))
    require((smaller.lengths == 29).all(), f"lengths {smaller.lengths.tolist()}, all could be 29")
    require(all(5 not in layer.positions.tolist() for layer in smaller.layers), "the one candidate stays")


def no_candidate_may_stay(policy: Policy, score: Score) -> None:
    """A budget of what is protected leaves that."""
    for variant in ("paper", "official"):
        lengths = evicting(policy, score, 16, 60, sink=4, recent=12, variant=variant).decide(recorded(60)).lengths
        stale = policy.layers.kind == "entropy" and variant == "official"  # its floor is a part of the whole budget
        require((lengths >= 16).all(), f"{variant}: protected tokens are evicted")
        require(stale or (lengths == 16).all(), f"{variant}: more is kept than a budget of the protected tokens")


def equal_pairs_are_chosen_the_same_way(policy: Policy, score: Score) -> None:
    """Pairs that are all alike are told apart by layer, head and position: the same ones every time."""
    eviction, same = evicting(policy, score, 40, 50, sink=2, recent=4), alike(50)
    first, again = eviction.decide(same), eviction.decide(same)
    _spent(40 * len(first.kept[0]) * LAYERS - int(first.lengths.sum()), left_over(eviction.policy, 50))
    require(torch.equal(masks(first), masks(again)), "equal pairs are chosen another way the second time")


def saturated_attention_is_ranked(policy: Policy, score: Score) -> None:
    """One token has all the weight of every row, in half precision: scores are numbers, and budgets are spent."""
    eviction = evicting(policy, score, 20, 40, sink=0, recent=4)
    for dtype in (torch.bfloat16, torch.float16):
        smaller = eviction(KVCache(tuple(saturated(dtype, index) for index in range(LAYERS)), 40))
        _spent(20 * len(smaller.lengths[0]) * LAYERS - smaller.pairs, left_over(eviction.policy, 40))


def numbers_that_are_none_are_refused(policy: Policy, score: Score) -> None:
    """NaN or inf in the cache, even where the score does not look: what would stay could not be attended to."""
    eviction, cache = evicting(policy, score, 20, 40, sink=0, recent=4), recorded(40)
    for part, value in SPOILT:
        spoilt = getattr(cache.layers[1], part).clone()
        spoilt[17, 3] = value
        layers = (cache.layers[0], replace(cache.layers[1], **{part: spoilt}), cache.layers[2])
        try:
            eviction(KVCache(layers, 40))
        except ValueError as error:
            told = f"layer 1 holds NaN or inf in its {part}" in str(error)
            require(told, f"{value} in the {part} is refused, but not by name: {error}")
        else:
            raise AssertionError(f"{value} in the {part} is ranked")


@lru_cache
def alike(tokens: int) -> KVCache:
    """Every pair and every query the same."""
    keys = values = torch.ones(KV_HEADS, tokens, HEAD_DIM)
    queries = torch.ones(HEADS, tokens, HEAD_DIM)
    return KVCache(tuple(layer_of(queries, keys, values, index) for index in range(LAYERS)), tokens)


@lru_cache
def saturated(dtype: torch.dtype, index: int) -> LayerCache:
    """Token 11 draws logits of 60 and more, the others about 0."""
    layer = random_cache(40, layers=1, seed=index, window=40).layers[0]
    keys, values = (part.clone() for part in layer.dense)
    queries = layer.windows[0].queries.clone()
    keys[..., 0], queries[..., 0] = 0, 1
    keys[:, 11, 0] = 200
    return layer_of(queries.to(dtype), keys.to(dtype), values.to(dtype), index)


def _spent(left: int, most: int) -> None:
    require(0 <= left < most, f"{left} pairs of the budget are left")
