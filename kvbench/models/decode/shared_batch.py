"""The store `shared`: cells of one prompt decode over the one full cache, each behind a mask of what it keeps.

Keys and values are read once for all cells, so this is the faster store where cells x kept share is above 1, and the
smaller one: a cell adds a mask, no pairs. It frees nothing, so it says what a method answers, not what it saves. What a
cell keeps must be pairs of the full cache as they are, and stay kept while it answers.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kvbench.cache.attention import LOGITS_AT_ONCE, Rule, capped, hidden, softmax
from kvbench.cache.kv_cache import KVCache, LayerCache, storage_bytes
from kvbench.cache.shapes import Kept


@dataclass(frozen=True)
class MaskedLayer:
    """One layer: its full cache, what each cell does not keep of it (None: a local layer, kept whole), the tails."""

    full: LayerCache
    evicted: Bool[Tensor, "kv_heads cells members tokens"] | None
    tail_keys: Float[Tensor, "cells kv_heads room head_dim"]
    tail_values: Float[Tensor, "cells kv_heads room head_dim"]


class SharedCacheBatch:
    """The reader of a batch of cells, in the place of a `DecodeBatch`. `room` tokens can be read after the prefix.

    kept: of each cell, by evictable layer, one row a stored head: KV heads or query heads, the same in all cells.
    """

    def __init__(self, full: KVCache, kept: Sequence[Sequence[Kept]], cells: int, room: int) -> None:
        assert 0 < len(kept) <= cells
        self.cells, self.real, self.room = cells, len(kept), room
        self.num_tokens, self.used = full.num_tokens, 0
        self.failures: dict[int, str] = {}
        by_layer = {layer.index: [one[place] for one in kept] for place, layer in enumerate(full.evictable)}
        self._layers = {layer.index: _layer(layer, by_layer.get(layer.index), cells, room) for layer in full.layers}
        self._full_bytes = full.bytes_held

    def attend(
        self,
        layer: int,
        queries: Float[Tensor, "cells heads new head_dim"],
        keys: Float[Tensor, "cells kv_heads new head_dim"],
        values: Float[Tensor, "cells kv_heads new head_dim"],
        rule: Rule,
    ) -> Float[Tensor, "cells heads new head_dim"]:
        """Append the new tokens to the tails; every row sees what its cell keeps and, causally, its tail.

        Products have one shape however many cells there are. Tokens are taken a few at a time, so that their logits
        over the whole prompt stay within `LOGITS_AT_ONCE`.
        """
        state, given, new = self._layers[layer], min(self.cells, queries.shape[0]), queries.shape[2]
        stop = self.used + new
        state.tail_keys[:given, :, self.used : stop] = keys[:given]
        state.tail_values[:given, :, self.used : stop] = values[:given]
        rows = queries.new_zeros(self.cells, *queries.shape[1:])
        rows[:given] = queries[:given]
        step = max(1, LOGITS_AT_ONCE // (rows.shape[0] * rows.shape[1] * (self.num_tokens + self.room)))
        parts = [
            self._attend_part(state, rows[:, :, start : start + step], self.used + min(start + step, new), rule)
            for start in range(0, new, step)
        ]
        outputs = torch.zeros_like(queries)
        outputs[:given] = torch.cat(parts, dim=2)[:given]
        return outputs

    def _attend_part(
        self, state: MaskedLayer, queries: Float[Tensor, "cells heads new head_dim"], stop: int, rule: Rule
    ) -> Float[Tensor, "cells heads new head_dim"]:
        """The same for queries that are the newest of `stop` tokens behind the prefix."""
        (keys, values), window = state.full.dense, state.full.sliding_window
        cells, heads, new, head_dim = queries.shape
        kv_heads, held = keys.shape[:2]
        tail_keys, tail_values = state.tail_keys[:, :, :stop], state.tail_values[:, :, :stop]
        by_cell = queries.reshape(cells, kv_heads, -1, head_dim)
        by_head = by_cell.transpose(0, 1).reshape(kv_heads, -1, head_dim)
        shape = (kv_heads, cells, heads // kv_heads, new, -1)
        prefix = (by_head @ keys.mT).view(shape)
        tail = (by_cell @ tail_keys.mT).transpose(0, 1).reshape(shape)
        logits = capped(torch.cat((prefix, tail), dim=-1) * rule.scaling, rule.softcap)
        if state.evicted is not None:
            logits[..., :held].masked_fill_(state.evicted[:, :, :, None], -torch.inf)
        end, device = self.num_tokens + stop, queries.device
        if window is not None:
            before = hidden(new, end, slice(self.num_tokens - held, self.num_tokens), device, window)
            logits[..., :held].masked_fill_(before, -torch.inf)
        if new > 1 or window is not None:
            logits[..., held:].masked_fill_(hidden(new, end, slice(self.num_tokens, end), device, window), -torch.inf)
        sinks = None
        if rule.sinks is not None:
            by_row = rule.sinks.to(logits.dtype).view(kv_heads, 1, -1, 1)
            sinks = by_row.expand(logits.shape[:-1])
        weights = softmax(logits, sinks).to(values.dtype)
        outputs = (weights[..., :held].reshape(kv_heads, -1, held) @ values).view(kv_heads, cells, -1, head_dim)
        outputs = outputs.transpose(0, 1)
        behind = weights[..., held:].reshape(kv_heads, cells, -1, stop).transpose(0, 1)
        return (outputs + behind @ tail_values).reshape(cells, heads, new, head_dim)

    def finish(self, new: int) -> None:
        """Count tokens as read once all layers have seen them."""
        self.used += new

    def close(self, cell: int) -> None:
        """Nothing to do for a cell that has stopped."""

    @property
    def positions(self) -> list[int]:
        """The position of the next token of every cell."""
        return [self.num_tokens + self.used] * self.cells

    @property
    def peak_bytes(self) -> list[int]:
        """Bytes behind each real cell while it decodes: the full cache that all share, its own mask and its tails."""
        layers = self._layers.values()
        tails = storage_bytes(tail for layer in layers for tail in (layer.tail_keys, layer.tail_values)) // self.cells
        masks = sum(layer.evicted.nbytes for layer in layers if layer.evicted is not None) // self.cells
        return [self._full_bytes + masks + tails] * self.real


def _layer(full: LayerCache, kept: Sequence[Kept] | None, cells: int, room: int) -> MaskedLayer:
    """Masks of all cells beside each other by KV head; missing cells keep everything."""
    kv_heads, like, evicted = full.cache_heads, full.keys, None
    if kept is not None:
        stored, tokens = kept[0].shape
        assert {mask.shape for mask in kept} == {(stored, tokens)}, "cells of a tile share one layout"
        evicted = torch.zeros(kv_heads, cells, stored // kv_heads, tokens, dtype=torch.bool, device=like.device)
        for cell, mask in enumerate(kept):
            evicted[:, cell] = ~mask.to(like.device).view(kv_heads, -1, tokens)
    tails = (cells, kv_heads, room, like.shape[1])
    return MaskedLayer(full, evicted, like.new_zeros(tails), like.new_zeros(tails))
