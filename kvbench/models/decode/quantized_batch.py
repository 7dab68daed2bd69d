"""Stores in few bits: cells decode over quantised copies of what they keep, read back layer by layer at every step.

As in transformers' `QuantizedCache`, attention sees numbers of the model's own precision: bytes are saved, not time.
What is read after the prompt stays as it is.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from kvbench.cache.attention import Rule, over_prefix_and_tail
from kvbench.cache.kv_cache import storage_bytes
from kvbench.cache.quantized import PackedCache, PackedLayer
from kvbench.models.decode.batch import sinks_by_row, unseen


@dataclass(frozen=True)
class Behind:
    """A layer of a cell, and the tokens read since."""

    layer: PackedLayer
    keys: Float[Tensor, "cache_heads room head_dim"]
    values: Float[Tensor, "cache_heads room head_dim"]


class QuantizedBatch:
    """The reader of a batch of cells, in the place of a `DecodeBatch`. `room` tokens can be read after the prefix.

    Every cell is attended to by itself, so that its bits do not depend on others.
    """

    def __init__(self, caches: Sequence[PackedCache], cells: int, room: int) -> None:
        assert 0 < len(caches) <= cells and len({cache.num_tokens for cache in caches}) == 1
        self.cells, self.real, self.room = cells, len(caches), room
        self.num_tokens, self.used = caches[0].num_tokens, 0
        self.failures: dict[int, str] = {}
        self._held = [{layer.index: _behind(layer, room) for layer in cache.layers} for cache in caches]
        self._bytes = [cache.bytes_held for cache in caches]

    def attend(
        self,
        layer: int,
        queries: Float[Tensor, "cells heads new head_dim"],
        keys: Float[Tensor, "cells kv_heads new head_dim"],
        values: Float[Tensor, "cells kv_heads new head_dim"],
        rule: Rule,
    ) -> Float[Tensor, "cells heads new head_dim"]:
        """Append the new tokens to the tails; every row sees its prefix as it is read back and, causally, its tail."""
        outputs = torch.zeros_like(queries)
        for cell, held in enumerate(self._held):
            outputs[cell] = self._attend_one(held[layer], queries[cell], keys[cell], values[cell], rule)
        return outputs

    def _attend_one(
        self,
        state: Behind,
        queries: Float[Tensor, "heads new head_dim"],
        keys: Float[Tensor, "kv_heads new head_dim"],
        values: Float[Tensor, "kv_heads new head_dim"],
        rule: Rule,
    ) -> Float[Tensor, "heads new head_dim"]:
        stored, window = state.layer.cache_heads, state.layer.sliding_window
        heads, new, head_dim = queries.shape
        stop, group = self.used + new, heads // stored
        end = self.num_tokens + stop
        for tail, fresh in ((state.keys, keys), (state.values, values)):
            tail[:, self.used : stop] = fresh.repeat_interleave(stored // fresh.shape[0], dim=0)
        rows = queries.reshape(stored, group * new, head_dim)
        outputs = torch.empty_like(rows)
        sinks = sinks_by_row(rule.sinks, 1, stored, new, queries.dtype)
        tail_hidden = unseen(slice(self.num_tokens, end), new, end, group, window, queries.device)
        for own, packed_keys, packed_values in state.layer.runs:
            chosen = slice(None) if len(own) == stored else list(own)
            prefix, length = None, state.layer.lengths[own[0]]
            if window is not None:
                prefix = unseen(
                    slice(self.num_tokens - length, self.num_tokens), new, end, group, window, queries.device
                )
            outputs[chosen] = over_prefix_and_tail(
                rows[chosen],
                packed_keys.dense(),
                packed_values.dense(),
                state.keys[chosen, :stop],
                state.values[chosen, :stop],
                tail_hidden,
                rule.scaling,
                hidden_prefix=prefix,
                softcap=rule.softcap,
                sinks=None if sinks is None else sinks[chosen],
            )
        return outputs.view(heads, new, head_dim)

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
        """Bytes of each real cell while it decodes: what is packed, and its tails. What one layer is read back into
        while it is attended to is not counted.
        """
        tails = (storage_bytes(tail for one in held.values() for tail in (one.keys, one.values)) for held in self._held)
        return [packed + tail for packed, tail in zip(self._bytes, tails, strict=True)]


def _behind(layer: PackedLayer, room: int) -> Behind:
    like = layer.runs[0][1].rest
    shape = (layer.cache_heads, room, like.shape[-1])
    return Behind(layer, like.new_zeros(shape), like.new_zeros(shape))
