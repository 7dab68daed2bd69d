"""Axis names and array aliases: every annotation in kvbench spells its axes with these words.

    layers        decoder layers
    heads         query heads
    kv_heads      key/value heads of the model; query head h reads KV head h // group
    group         query heads that share one KV head = heads / kv_heads
    cache_heads   heads of the cache: kv_heads, or heads in the layout `query_heads`
    scored_heads  heads, or kv_heads for scores that look at keys only
    tokens        positions of the token sequence, or the columns of a dense cache
    columns       some of the tokens, one after the other
    queries       observed rows, or tokens being read
    pairs         KV pairs of one layer, one cache head after the other
    pages         runs of consecutive pairs of a head, `page` each, that are read together
    head_dim      size of one key or value
    cells         cells that decode as one batch
    segments      (cell, cache head) combinations of a batch

Annotations are checked under pytest only (jaxtyping with beartype).
"""

from jaxtyping import Bool, Float, Int
from torch import Tensor

Rows = Float[Tensor, "heads queries head_dim"]
"""Queries, or their attention outputs."""

Dense = Float[Tensor, "kv_heads tokens head_dim"]
"""Keys or values of a dense layer."""

Scores = Float[Tensor, "scored_heads tokens"]
"""Raw scores: one row per query head, or per KV head for scores that read keys only."""

Ranked = Float[Tensor, "cache_heads columns"]
"""Pooled and reduced scores, one row per cache head; protected columns may be missing."""

Kept = Bool[Tensor, "cache_heads tokens"]
"""True where a KV pair is kept."""

Lengths = Int[Tensor, "layers cache_heads"]
"""KV pairs kept by each head of each layer, on the CPU."""
