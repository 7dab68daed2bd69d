"""Random layers, and what follows an eviction from them."""

from hypothesis import strategies as st
from torch import Tensor

from kvbench.cache.kv_cache import LayerCache
from kvbench.eviction.budget import TokenBudget
from kvbench.eviction.evict import Eviction
from kvbench.eviction.policy import Policy
from kvbench.eviction.scores.attn import Attention
from kvbench.eviction.step import Kind, Step

TOKENS = 23
kept_masks = st.lists(st.lists(st.booleans(), min_size=TOKENS, max_size=TOKENS), min_size=2, max_size=2)


def applied(apply: Kind, layer: LayerCache, kept: Tensor) -> tuple[LayerCache, LayerCache]:
    """The kept pairs of a layer, and what becomes of them."""
    rows = layer.observed(apply.rows(5, TOKENS)) if apply.reads_rows else None
    plain = layer.select(kept)
    return plain, apply.change(layer, kept, plain, rows, "paper")


def evicting(apply: Step, pairs: int, **fields: object) -> Eviction:
    """A policy with a window of 8, on random caches."""
    return Eviction(Policy("p", window=8, recent=4, steps=(apply,), **fields), Attention(), TokenBudget(pairs))  # type: ignore[arg-type]
