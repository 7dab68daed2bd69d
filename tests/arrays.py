"""Random layers and caches for tests that need no model."""

from dataclasses import replace

import torch
from torch import Tensor

from kvbench.attention import Rule, causal, observe
from kvbench.cache import KVCache, LayerCache, from_dense
from kvbench.forecast import Forecast, Horizon
from kvbench.scores.kvzip import KVzip, strongest


def random_layer(
    tokens: int, index: int = 0, heads: int = 6, kv_heads: int = 2, head_dim: int = 10, window: int = 16, seed: int = 0
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
    return Forecast(Horizon(skip=4, positions=512), queries.float().mean(dim=1), covariance, scaling)


def random_cache(tokens: int, layers: int = 3, seed: int = 0, **sizes: int) -> KVCache:
    """A cache of several random layers."""
    return KVCache(tuple(random_layer(tokens, index, seed=seed, **sizes) for index in range(layers)), tokens)
