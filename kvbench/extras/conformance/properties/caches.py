"""Caches of random numbers that need no model, for tests and properties."""

from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor

from kvbench.cache.attention import AttentionParams, causal, observe, strongest
from kvbench.cache.kv_cache import FutureQueryStats, KVCache, LayerCache, PredictedQueries, from_dense
from kvbench.cache.shapes import Scores
from kvbench.eviction.policy import Policy
from kvbench.eviction.scores.score import AttentionCall, ContextRepetition, Score

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
    """Return a dense layer with peaked attention, values with an offset, and a window of its newest `window` rows."""
    generator = torch.Generator().manual_seed(seed + 1000 * index)
    queries = 1.5 * torch.randn(heads, min(window, tokens), head_dim, generator=generator)
    keys = torch.randn(kv_heads, tokens, head_dim, generator=generator)
    values = torch.randn(kv_heads, tokens, head_dim, generator=generator) + 3
    return layer_of(queries, keys, values, index)


class Probed(dict[Hashable, Scores]):
    """The records of a layer, made when they are asked for: what `repeated` makes of whether a repetition records
    weights; for any score that reads hidden states, what it makes of these.
    """

    def __init__(self, layer: LayerCache, call: AttentionCall, repeated: Callable[[bool], Scores]) -> None:
        super().__init__()
        self._layer, self._call, self._repeated = layer, call, repeated

    def __missing__(self, asked: Hashable) -> Scores:
        if isinstance(asked, ContextRepetition):
            return self.setdefault(asked, self._repeated(asked.softmax))
        assert isinstance(asked, Score) and asked.inputs.hidden_states, f"{asked} was not declared"
        return asked.read_call(self._layer, self._call)


def layer_of(queries: Tensor, keys: Tensor, values: Tensor, index: int = 0) -> LayerCache:
    """Return a layer of given arrays. `queries` are the newest rows; they also serve as the rows that repeat the
    context.

    The hidden state of a token is its keys side by side.
    """
    scaling = keys.shape[-1] ** -0.5
    window = observe(queries, causal(queries, keys, values, scaling), keys, AttentionParams(scaling))
    layer = from_dense(index, queries.shape[0], keys, values, (window,))
    attended = torch.cat((keys, keys[:, -queries.shape[1] :]), dim=1)
    columns, rule = slice(0, keys.shape[1]), AttentionParams(scaling)

    def repeated(softmax: bool) -> Scores:
        return strongest(queries, attended, columns, rule, softmax)

    hidden = keys.transpose(0, 1).flatten(1)
    generator, width = torch.Generator().manual_seed(index), queries.shape[0] * queries.shape[2]
    output = torch.randn(hidden.shape[1], width, generator=generator)
    layer = replace(layer, projections={"output": output, "query": output.T})
    every = queries[:, torch.arange(hidden.shape[0]) % queries.shape[1]]
    call = AttentionCall(None, None, hidden[None], {}, every)
    return replace(
        layer, recordings=Probed(layer, call, repeated), future_queries=(future_queries_of(queries, scaling),)
    )


def future_queries_of(queries: Tensor, scaling: float) -> FutureQueryStats:
    """Future queries distributed like these, whatever their position."""
    spread = queries.float() - queries.float().mean(dim=1, keepdim=True)
    covariance = spread.mT @ spread / queries.shape[1]
    return FutureQueryStats(PredictedQueries(skip=4, positions=512), queries.float().mean(dim=1), covariance, scaling)


def random_cache(tokens: int, layers: int = LAYERS, seed: int = 0, **sizes: int) -> KVCache:
    """Return a cache of several random layers."""
    return KVCache(tuple(random_layer(tokens, index, seed=seed, **sizes) for index in range(layers)), tokens)


@lru_cache
def recorded(tokens: int, seed: int = 0) -> KVCache:
    """Return a random cache with every query recorded, so that it serves windows of any length."""
    return random_cache(tokens, seed=seed, window=tokens)


@lru_cache
def without_newest(tokens: int, newest: int) -> KVCache:
    """`recorded(tokens)` as if its newest tokens had not been read."""
    layers, stop = [], tokens - newest
    for layer in recorded(tokens).layers:
        queries, keys, values = (part[:, :stop] for part in (layer.windows[0].queries, *layer.dense))
        layers.append(replace(layer_of(queries, keys, values, layer.index), projections=layer.projections))
    return KVCache(tuple(layers), stop)


@lru_cache
def with_equal_pairs(tokens: int) -> KVCache:
    """Return a cache whose KV pairs and queries are all the same."""
    keys = values = torch.ones(KV_HEADS, tokens, HEAD_DIM)
    queries = torch.ones(HEADS, tokens, HEAD_DIM)
    return KVCache(tuple(layer_of(queries, keys, values, index) for index in range(LAYERS)), tokens)


@lru_cache
def saturated(dtype: torch.dtype) -> KVCache:
    """40 tokens, of which token 11 draws logits of 60 and more, the others about 0."""
    layers = []
    for index in range(LAYERS):
        layer = random_cache(40, layers=1, seed=index, window=40).layers[0]
        keys, values = (part.clone() for part in layer.dense)
        queries = layer.windows[0].queries.clone()
        keys[..., 0], queries[..., 0] = 0, 1
        keys[:, 11, 0] = 200
        layers.append(layer_of(queries.to(dtype), keys.to(dtype), values.to(dtype), index))
    return KVCache(tuple(layers), 40)


@lru_cache
def beginning_of_text(tokens: int, later: float) -> KVCache:
    """Return first tokens of a text whose other 30 tokens have only the number `later` in keys, values and queries."""
    generator = torch.Generator().manual_seed(3)
    sizes = (HEADS, KV_HEADS, KV_HEADS)
    queries, keys, values = (torch.randn(heads, tokens + 30, HEAD_DIM, generator=generator) for heads in sizes)
    for part in (queries, keys, values):
        part[:, tokens:] = later
    return KVCache((layer_of(queries[:, :tokens], keys[:, :tokens], values[:, :tokens]),), tokens)
