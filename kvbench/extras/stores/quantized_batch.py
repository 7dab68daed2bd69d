"""Quantised stores: cells decode over quantised copies of their kept pairs, dequantised layer by layer at every step.

As in transformers' `QuantizedCache`, attention runs in the dtype of the model: bytes are saved, not time.
Tokens read after the prompt are not quantised.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from kvbench.cache.attention import AttentionParams, attend_segments
from kvbench.cache.recurrent import join_states
from kvbench.extras.stores.quantized import PackedCache, PackedLayer
from kvbench.models.decode.batch import CellPairs, CellRows, DecodeBatch, Heads, KVHeads, sinks_by_row, unseen


@dataclass(frozen=True)
class CellLayer:
    """A layer of a cell: its quantised prefix and the tail of new tokens."""

    layer: PackedLayer
    keys: Float[Tensor, "cache_heads max_new_tokens head_dim"]
    values: Float[Tensor, "cache_heads max_new_tokens head_dim"]


class QuantizedBatch(DecodeBatch):
    """Every cell attends separately to its own quantised copy, so that its bits do not depend on others."""

    uncaptured = "each cell dequantises what it holds by itself"

    def __init__(self, caches: Sequence[PackedCache], cells: int, max_new_tokens: int) -> None:
        assert len({cache.num_tokens for cache in caches}) == 1
        recurrent = join_states([cache.recurrent for cache in caches])
        super().__init__(cells, len(caches), caches[0].num_tokens, max_new_tokens, recurrent)
        self._layers = [{layer.index: _cell_layer(layer, max_new_tokens) for layer in cache.layers} for cache in caches]
        self._bytes = [cache.bytes_held for cache in caches]

    def _attend(self, layer: int, queries: Heads, keys: KVHeads, values: KVHeads, rule: AttentionParams) -> Heads:
        cells = zip(self._layers, queries, keys, values, strict=True)
        return torch.stack([self._attend_cell(layers[layer], q, k, v, rule) for layers, q, k, v in cells])

    def _attend_cell(
        self, state: CellLayer, queries: CellRows, keys: CellPairs, values: CellPairs, rule: AttentionParams
    ) -> CellRows:
        cache_heads, window = state.layer.cache_heads, state.layer.sliding_window
        heads, new, head_dim = queries.shape
        tail, group = self.num_new_tokens + new, heads // cache_heads
        end = self.num_tokens + tail
        for store, fresh in ((state.keys, keys), (state.values, values)):
            store[:, self.num_new_tokens : tail] = fresh.repeat_interleave(cache_heads // fresh.shape[0], dim=0)
        rows = queries.reshape(cache_heads, group * new, head_dim)
        outputs = torch.empty_like(rows)
        sinks = sinks_by_row(rule.sinks, 1, cache_heads, new, queries.dtype)
        hidden_tail = unseen(slice(self.num_tokens, end), new, end, group, window, queries.device)
        for run_heads, packed_keys, packed_values in state.layer.runs:
            chosen = slice(None) if len(run_heads) == cache_heads else list(run_heads)
            hidden_prefix, length = None, state.layer.lengths[run_heads[0]]
            if window is not None:
                columns = slice(self.num_tokens - length, self.num_tokens)
                hidden_prefix = unseen(columns, new, end, group, window, queries.device)
            outputs[chosen] = attend_segments(
                rows[chosen],
                torch.cat((packed_keys.dense(), state.keys[chosen, :tail]), dim=1),
                torch.cat((packed_values.dense(), state.values[chosen, :tail]), dim=1),
                hidden_tail,
                rule.scaling,
                hidden_prefix,
                softcap=rule.softcap,
                sinks=None if sinks is None else sinks[chosen],
            )
        return outputs.view(heads, new, head_dim)

    @property
    def peak_bytes(self) -> list[int]:
        """Bytes of each active cell while it decodes: its quantised prefix and its tails, without the one layer that is
        dequantised at a time.
        """
        room = slice(self.max_new_tokens)
        tails = [sum(2 * layer.keys[:, room].nbytes for layer in cell.values()) for cell in self._layers]
        return [prefix + tail for prefix, tail in zip(self._bytes, tails, strict=True)]


def _cell_layer(layer: PackedLayer, max_new_tokens: int) -> CellLayer:
    like = layer.runs[0][1].rest
    shape = (layer.cache_heads, max_new_tokens, like.shape[-1])
    return CellLayer(layer, like.new_zeros(shape), like.new_zeros(shape))
