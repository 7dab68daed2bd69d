"""The store `shared`: cells of one prompt decode over one full cache, each with a mask of its kept pairs.

Keys and values are read once for all cells, so this store is faster and smaller if cells x kept share is above 1. A
cell must keep the same unchanged pairs until its answer ends.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kvbench.cache.attention import LOGITS_AT_ONCE, Rule, capped, hidden, softmax
from kvbench.cache.kv_cache import KVCache, LayerCache
from kvbench.cache.recurrent import join_states
from kvbench.cache.shapes import Kept
from kvbench.models.decode.batch import DecodeBatch, Heads, KVHeads


@dataclass(frozen=True)
class MaskedLayer:
    """One layer: its full cache, the pairs that each cell evicted (None: a local layer, kept whole), the tails."""

    full: LayerCache
    evicted: Bool[Tensor, "kv_heads cells group tokens"] | None
    tail_keys: Float[Tensor, "cells kv_heads max_new_tokens head_dim"]
    tail_values: Float[Tensor, "cells kv_heads max_new_tokens head_dim"]


class SharedCacheBatch(DecodeBatch):
    """Every cell over one full cache. kept: the masks of each cell by evictable layer, with one row per KV head or per
    query head, alike in all cells.
    """

    def __init__(self, full: KVCache, kept: Sequence[Sequence[Kept]], cells: int, max_new_tokens: int) -> None:
        recurrent = join_states([full.recurrent] * len(kept))
        super().__init__(cells, len(kept), full.num_tokens, max_new_tokens, recurrent)
        by_layer = {layer.index: [masks[place] for masks in kept] for place, layer in enumerate(full.evictable)}
        self._layers = {
            layer.index: _layer(layer, by_layer.get(layer.index), cells, max_new_tokens) for layer in full.layers
        }
        self._full_bytes = full.bytes_held

    def _attend(self, layer: int, queries: Heads, keys: KVHeads, values: KVHeads, rule: Rule) -> Heads:
        """A few tokens at a time, so that their logits over the prompt stay within `LOGITS_AT_ONCE`."""
        state, active, new = self._layers[layer], slice(self.num_active), queries.shape[2]
        read = slice(self.num_new_tokens, self.num_new_tokens + new)
        state.tail_keys[active, :, read], state.tail_values[active, :, read] = keys, values
        rows = queries.new_zeros(self.cells, *queries.shape[1:])
        rows[active] = queries
        columns = self.num_tokens + self.max_new_tokens
        step = max(1, LOGITS_AT_ONCE // (rows.shape[0] * rows.shape[1] * columns))
        parts = [
            self._attend_part(state, part, read.start + min(start + step, new), rule)
            for start, part in zip(range(0, new, step), rows.split(step, dim=2), strict=True)
        ]
        return torch.cat(parts, dim=2)[active]

    def _attend_part(self, state: MaskedLayer, queries: Heads, stop: int, rule: Rule) -> Heads:
        """`_attend` for the newest of `stop` tokens after the prefix."""
        (keys, values), window = state.full.dense, state.full.sliding_window
        cells, heads, new, head_dim = queries.shape
        kv_heads, length = keys.shape[:2]
        tail_keys, tail_values = state.tail_keys[:, :, :stop], state.tail_values[:, :, :stop]
        by_cell = queries.reshape(cells, kv_heads, -1, head_dim)
        by_head = by_cell.transpose(0, 1).reshape(kv_heads, -1, head_dim)
        shape = (kv_heads, cells, heads // kv_heads, new, -1)
        prefix = (by_head @ keys.mT).view(shape)
        tail = (by_cell @ tail_keys.mT).transpose(0, 1).reshape(shape)
        logits = capped(torch.cat((prefix, tail), dim=-1) * rule.scaling, rule.softcap)
        if state.evicted is not None:
            logits[..., :length].masked_fill_(state.evicted[:, :, :, None], -torch.inf)
        end, device = self.num_tokens + stop, queries.device
        if window is not None:
            hidden_prefix = hidden(new, end, slice(self.num_tokens - length, self.num_tokens), device, window)
            logits[..., :length].masked_fill_(hidden_prefix, -torch.inf)
        if new > 1 or window is not None:
            logits[..., length:].masked_fill_(hidden(new, end, slice(self.num_tokens, end), device, window), -torch.inf)
        sinks = None
        if rule.sinks is not None:
            by_row = rule.sinks.to(logits.dtype).view(kv_heads, 1, -1, 1)
            sinks = by_row.expand(logits.shape[:-1])
        weights = softmax(logits, sinks).to(values.dtype)
        outputs = (weights[..., :length].reshape(kv_heads, -1, length) @ values).view(kv_heads, cells, -1, head_dim)
        outputs = outputs.transpose(0, 1)
        newer = weights[..., length:].reshape(kv_heads, cells, -1, stop).transpose(0, 1)
        return (outputs + newer @ tail_values).reshape(cells, heads, new, head_dim)

    @property
    def peak_bytes(self) -> list[int]:
        """Bytes of each active cell while it decodes: the shared full cache, its own mask and its tails."""
        layers = self._layers.values()
        tails = sum(2 * layer.tail_keys[:, :, : self.max_new_tokens].nbytes for layer in layers) // self.cells
        masks = sum(layer.evicted.nbytes for layer in layers if layer.evicted is not None) // self.cells
        return [self._full_bytes + masks + tails] * self.num_active


def _layer(full: LayerCache, kept: Sequence[Kept] | None, cells: int, max_new_tokens: int) -> MaskedLayer:
    """The masks of all cells by KV head; inactive cells keep everything."""
    kv_heads, like, evicted = full.cache_heads, full.keys, None
    if kept is not None:
        cache_heads, tokens = kept[0].shape
        assert {mask.shape for mask in kept} == {(cache_heads, tokens)}, "cells of a batch share one layout"
        evicted = torch.zeros(kv_heads, cells, cache_heads // kv_heads, tokens, dtype=torch.bool, device=like.device)
        for cell, mask in enumerate(kept):
            evicted[:, cell] = ~mask.to(like.device).view(kv_heads, -1, tokens)
    tails = (cells, kv_heads, max_new_tokens, like.shape[1])
    return MaskedLayer(full, evicted, like.new_zeros(tails), like.new_zeros(tails))
