"""What one cut of a cache must do, whatever the policy and the score."""

from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor

from kvbench.cache.attention import Rule, causal, over_layer
from kvbench.cache.kv_cache import KVCache, Window
from kvbench.conformance.properties.inputs import (
    HEAD_DIM,
    HEADS,
    KV_HEADS,
    LAYERS,
    evicting,
    layer_of,
    left_over,
    masks,
    recorded,
    require,
)
from kvbench.eviction.budget import Tokens
from kvbench.eviction.evict import Eviction, reads_rows
from kvbench.eviction.policy import Policy
from kvbench.eviction.scores.score import Score

TOKENS, BUDGET = 97, 53


def budget_is_spent_and_protected_tokens_stay(policy: Policy, score: Score) -> None:
    """The smaller cache holds what was decided: the budget to the last pair, sinks and the newest among them."""
    eviction, cache = evicting(policy, score, BUDGET, TOKENS), recorded(TOKENS)
    decision = eviction.decide(cache)
    smaller = eviction.cut(cache, decision)
    stored = len(decision.kept[0])
    left = BUDGET * stored * LAYERS - smaller.pairs
    require(0 <= left < left_over(eviction.policy, TOKENS), f"{left} pairs of the budget are left")
    require(smaller.pairs == int(decision.lengths.sum()), f"{smaller.pairs} pairs, decided {decision.lengths.sum()}")
    for index, (mask, layer) in enumerate(zip(decision.kept, smaller.layers, strict=True)):
        guarded = mask[:, : eviction.policy.sinks].all() and mask[:, TOKENS - eviction.policy.last :].all()
        require(guarded, f"layer {index} evicts protected tokens")
        same = layer.positions.tolist() == mask.nonzero()[:, 1].tolist()
        require(same, f"layer {index} holds other positions than were decided")


def budget_for_everything_keeps_the_dense_cache(policy: Policy, score: Score) -> None:
    """What a budget of the prompt or more keeps is attended to as the dense cache is, pair by pair the same."""
    cache = recorded(TOKENS)
    for pairs in (TOKENS, TOKENS + 40):
        eviction = evicting(policy, score, pairs, TOKENS)
        whole = eviction(cache)
        require(eviction.policy.layout == "query_heads" or whole is cache, f"budget {pairs} copies the cache")
        apart = evicting(policy, score, pairs, TOKENS, layout="query_heads", group=None)(cache)
        for dense, layer in zip(cache.layers, apart.layers, strict=True):
            keys, values = dense.dense
            queries = dense.windows[0].queries[:, -1:]
            wanted = causal(queries, keys, values, HEAD_DIM**-0.5)
            got = over_layer(queries, layer, Rule(HEAD_DIM**-0.5)).outputs
            require(torch.allclose(got, wanted, atol=1e-5), f"budget {pairs}: attention is not that of the dense cache")


def samples_do_not_see_each_other(policy: Policy, score: Score) -> None:
    """In whatever order samples are cut, one after the other or alone, each keeps the same."""
    eviction = evicting(policy, score, BUDGET, TOKENS)
    one, other, again = (masks(eviction.decide(recorded(TOKENS, seed))) for seed in (0, 1, 0))
    require(torch.equal(one, again), "a sample keeps something else after another sample")
    fresh = Eviction(eviction.policy, score, Tokens(BUDGET)).decide(recorded(TOKENS, 1))
    require(torch.equal(other, masks(fresh)), "a sample keeps something else alone than after another sample")


def only_declared_evidence_is_read(policy: Policy, score: Score) -> None:
    """Without any record where none is asked for; with rows outside the window spoilt by NaN where some are."""
    eviction, cache = evicting(policy, score, BUDGET, TOKENS), recorded(TOKENS)
    voting = eviction.policy.rows(TOKENS)

    def spoilt(window: Window) -> Window:
        queries, outputs, lse = (part.clone() for part in (window.queries, window.outputs, window.lse))
        for part in (queries, outputs, lse):
            part[:, : TOKENS - voting] = torch.nan
        return Window(queries, outputs, lse, window.scaling)

    asks = reads_rows(eviction.policy, score)
    layers = [replace(one, windows=tuple(map(spoilt, one.windows)) if asks else ()) for one in cache.layers]
    if score.evidence.repeat is None:
        layers = [replace(one, probed={}) for one in layers]
    if score.evidence.horizon is None:
        layers = [replace(one, forecasts=()) for one in layers]
    whole, without = eviction.decide(cache), eviction.decide(KVCache(tuple(layers), TOKENS))
    require(torch.equal(masks(whole), masks(without)), "evidence that was not declared changes what is kept")


def later_tokens_change_nothing(policy: Policy, score: Score) -> None:
    """What is kept of a span stays the same whatever is read after it, before the cut in memory or after it."""
    eviction, found = evicting(policy, score, BUDGET, TOKENS), []
    for later in (1e4, torch.nan):
        cut = eviction(_followed(later))
        kept = [positions.tolist() for positions in _by_head(cut)]
        (left,) = cut.layers
        new = torch.full((left.cache_heads, 1, HEAD_DIM), later)
        grown = KVCache((left.append(new, new, TOKENS),), TOKENS + 1)
        require([positions.tolist()[:-1] for positions in _by_head(grown)] == kept, "a new token moves what was kept")
        found.append(kept)
    require(found[0] == found[1], "what is kept depends on tokens that come later")


@lru_cache
def _followed(later: float) -> KVCache:
    """The beginning of a text that goes on with other numbers."""
    generator = torch.Generator().manual_seed(3)
    sizes = (HEADS, KV_HEADS, KV_HEADS)
    queries, keys, values = (torch.randn(heads, TOKENS + 30, HEAD_DIM, generator=generator) for heads in sizes)
    for part in (queries, keys, values):
        part[:, TOKENS:] = later
    return KVCache((layer_of(queries[:, :TOKENS], keys[:, :TOKENS], values[:, :TOKENS]),), TOKENS)


def _by_head(cache: KVCache) -> tuple[Tensor, ...]:
    (layer,) = cache.layers
    return layer.positions.split(layer.lengths)


def query_heads_can_be_stored_apart(policy: Policy, score: Score) -> None:
    """As many pairs for each query head, and what is spent is really repeated."""
    eviction = evicting(policy, score, BUDGET, TOKENS, layout="query_heads", group=None)
    smaller = eviction(recorded(TOKENS))
    left = BUDGET * HEADS * LAYERS - smaller.pairs
    require(0 <= left < left_over(eviction.policy, TOKENS), f"{left} pairs of the budget are left")
    require(smaller.bytes_held == smaller.pairs * 2 * HEAD_DIM * 4, f"{smaller.bytes_held} bytes are held")


def official_variant_stays_near_the_budget(policy: Policy, score: Score) -> None:
    """It may overspend by a quarter or leave a few pairs, and never touches the protected tokens."""
    eviction = evicting(policy, score, BUDGET, TOKENS, variant="official")
    decision = eviction.decide(recorded(TOKENS))
    mean = float(decision.lengths.float().mean())
    whole = eviction.policy.heads.kind == "binary"
    least = eviction.policy.protected if whole else BUDGET - 2  # heads that tie all go
    require(least <= mean <= 1.25 * BUDGET, f"{mean} pairs a head at a budget of {BUDGET}")
    recent = all(mask[:, TOKENS - eviction.policy.last :].all() for mask in decision.kept)
    require(recent, "the newest tokens are evicted")
