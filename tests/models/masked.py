"""The oracle of eviction: one dense forward pass in which later tokens cannot see evicted pairs."""

from collections.abc import Sequence

import torch
from torch import Tensor

from kvbench.cache.attention import AttentionParams
from kvbench.cache.kv_cache import KVCache, compact
from kvbench.models import bridge

Masks = Sequence[Tensor | None]
"""What stays by layer, [cache_heads, context]; None for a local layer, which nothing is evicted from."""


class MaskedReader:
    """Attention over the whole sequence with a mask of its own for every layer and head; nothing is compacted."""

    def __init__(self, context: int, kept: Masks) -> None:
        self.context, self.kept, self.recurrent = context, kept, None

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, rule: AttentionParams) -> Tensor:
        """Explicit softmax over visible columns: causal, inside the sliding window of a layer that has one, and for
        rows after the context only kept context columns."""
        heads, tokens = queries.shape[1], queries.shape[2]
        visible = torch.ones(heads, tokens, tokens, dtype=torch.bool).tril()
        if rule.sliding_window is not None:
            visible = visible.triu(1 - rule.sliding_window)
        kept = self.kept[layer]
        if kept is not None:
            visible[:, self.context :, : self.context] &= kept.repeat_interleave(heads // kept.shape[0], dim=0)[:, None]
        group = heads // keys.shape[1]
        logits = queries @ keys.repeat_interleave(group, 1).mT * rule.scaling
        if rule.softcap is not None:
            logits = rule.softcap * torch.tanh(logits / rule.softcap)
        numerators = (logits - logits.amax(-1, keepdim=True)).exp() * visible
        sinks = 0.0
        if rule.sinks is not None:
            sinks = (rule.sinks[None, :, None, None] - logits.amax(-1, keepdim=True)).exp()
        weights = numerators / (numerators.sum(-1, keepdim=True) + sinks)
        return weights @ values.repeat_interleave(group, 1)


def random_masks(cache: KVCache, seed: int, heads: int = 2) -> Masks:
    """Masks [heads, context] whose lengths differ by layer and head; one head of the first evictable layer is empty."""
    generator = torch.Generator().manual_seed(seed)
    masks: list[Tensor | None] = []
    for layer in cache.layers:
        shares = torch.rand(heads, 1, generator=generator)
        mask = torch.rand(heads, cache.num_tokens, generator=generator) < shares
        mask[0] &= layer is not cache.evictable[0]
        masks.append(mask if layer.evictable else None)
    return masks


def cut(cache: KVCache, masks: Masks) -> KVCache:
    """The cache without what is masked, compacted."""
    return compact(cache, tuple(mask for mask in masks if mask is not None))


def masked_forward(model: object, ids: Tensor, context: int, kept: Masks) -> Tensor:
    """Logits [tokens, vocabulary] of `ids`, whose first `context` tokens are later seen only where `kept` says."""
    with torch.inference_mode():
        return bridge.logits(model, ids[None], 0, MaskedReader(context, kept), last=len(ids))[0]
