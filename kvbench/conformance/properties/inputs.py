"""Random layers and caches that need no model, and the evictions that properties look at."""

from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from kvbench.cache.attention import Rule, causal, observe
from kvbench.cache.future_queries import Forecast, FutureQueries
from kvbench.cache.kv_cache import KVCache, LayerCache, from_dense
from kvbench.eviction.budget import Tokens
from kvbench.eviction.evict import Decision, Eviction
from kvbench.eviction.policy import Policy
from kvbench.eviction.scores.kvzip import KVzip, strongest
from kvbench.eviction.scores.score import Score

LAYERS, HEADS, KV_HEADS, HEAD_DIM = 3, 6, 2, 10
WINDOWED = Policy("windowed", window=16, recent=4)
"""A policy that takes any score."""


def random_layer(
    tokens: int,
    index: int = 0,
    heads: int = HEADS,
    kv_heads: int = KV_HEADS,
    head_dim: int = HEAD_DIM,
    window: int = 16,
    seed: int = 0,
) -> LayerCache:
    """A dense layer with peaky attention and offset values, and its newest `window` rows as evidence."""
    generator = torch.Generator().manual_seed(seed + 1000 * index)
    queries = 1.5 * torch.randn(heads, min(window, tokens), head_dim, generator=generator)
    keys = torch.randn(kv_heads, tokens, head_dim, generator=generator)
    values = torch.randn(kv_heads, tokens, head_dim, generator=generator) + 3
    return layer_of(queries, keys, values, index)


def layer_of(queries: Tensor, keys: Tensor, values: Tensor, index: int = 0) -> LayerCache:
    """A layer of given arrays; `queries` are the newest rows, and repeat all that they see."""
    scaling = keys.shape[-1] ** -0.5
    window = observe(queries, causal(queries, keys, values, scaling), keys, scaling)
    layer = from_dense(index, queries.shape[0], keys, values, (window,))
    scores = (KVzip(), KVzip(softmax=False, name="kvzip_logit"))
    seen = torch.cat((keys, keys[:, -queries.shape[1] :]), dim=1)
    columns, rule = slice(0, keys.shape[1]), Rule(scaling)
    probed = {one.evidence.repeat: strongest(queries, seen, columns, rule, one.softmax) for one in scores}
    return replace(layer, probed=probed, forecasts=(forecast_of(queries, scaling),))


def forecast_of(queries: Tensor, scaling: float) -> Forecast:
    """Later queries are expected to be like these, whatever their position."""
    spread = queries.float() - queries.float().mean(dim=1, keepdim=True)
    covariance = spread.mT @ spread / queries.shape[1]
    return Forecast(FutureQueries(skip=4, positions=512), queries.float().mean(dim=1), covariance, scaling)


def random_cache(tokens: int, layers: int = LAYERS, seed: int = 0, **sizes: int) -> KVCache:
    """A cache of several random layers."""
    return KVCache(tuple(random_layer(tokens, index, seed=seed, **sizes) for index in range(layers)), tokens)


@lru_cache
def recorded(tokens: int, seed: int = 0) -> KVCache:
    """The same cache for whoever asks, with every query recorded, so that every window is served."""
    return random_cache(tokens, seed=seed, window=tokens)


def evicting(policy: Policy, score: Score, pairs: int, tokens: int, **fields: Any) -> Eviction:
    """An eviction of `tokens` to `pairs` a head, some fields of the policy otherwise; a prompt's head has five."""
    return Eviction(replace(policy.of_prompt(5, tokens, pairs), **fields), score, Tokens(pairs))


def masks(decision: Decision) -> Tensor:
    """What is kept, [layers, stored heads, tokens]."""
    return torch.stack(decision.kept)


def left_over(policy: Policy, tokens: int) -> int:
    """What a budget need not spend is less than this: whole heads leave what does not pay for one more."""
    return tokens - policy.protected if policy.heads.kind == "binary" else 1


def require(holds: object, message: str) -> None:
    """Raise AssertionError with the message unless it holds."""
    if not holds:
        raise AssertionError(message)
