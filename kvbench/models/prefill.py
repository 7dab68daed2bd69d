"""Reading a prompt in blocks into a dense cache, recording the evidence that scores ask for on the way."""

from collections.abc import Collection

import torch
from jaxtyping import Float
from torch import Tensor

from kvbench.attention import causal, observe
from kvbench.cache import KVCache, LayerCache, Window, from_dense

Heads = Float[Tensor, "1 heads new head_dim"]
KVHeads = Float[Tensor, "1 kv_heads new head_dim"]


class Prefill:
    """The reader of a prompt of `tokens` tokens.

    For each number in `windows` that many of the newest rows of every layer are recorded as evidence. Each gets a
    record of its own: the last bits of a log-sum-exp depend on how many rows are multiplied at once, and a cell's
    scores must not depend on which other cells share its prefill.
    """

    def __init__(self, tokens: int, windows: Collection[int]) -> None:
        self.tokens = tokens
        self.windows = sorted({min(rows, tokens) for rows in windows})
        self.seen = 0
        self._keys: dict[int, Tensor] = {}
        self._values: dict[int, Tensor] = {}
        self._rows: dict[tuple[int, int], list[Window]] = {}
        self._query_heads: dict[int, int] = {}

    def attend(self, layer: int, queries: Heads, keys: KVHeads, values: KVHeads, scaling: float) -> Heads:
        """Store the block, attend causally to everything read so far, record the rows inside the window."""
        block = keys.shape[2]
        if layer not in self._keys:
            shape = (keys.shape[1], self.tokens, keys.shape[3])
            self._keys[layer], self._values[layer] = keys.new_empty(shape), values.new_empty(shape)
            self._query_heads[layer] = queries.shape[1]
        stop = self.seen + block
        self._keys[layer][:, self.seen : stop], self._values[layer][:, self.seen : stop] = keys[0], values[0]
        read_keys, read_values = self._keys[layer][:, :stop], self._values[layer][:, :stop]
        outputs = causal(queries[0], read_keys, read_values, scaling)
        for rows in self.windows:
            voting = min(block, stop - (self.tokens - rows))
            if voting > 0:
                seen = observe(queries[0, :, -voting:], outputs[:, -voting:], read_keys, scaling)
                self._rows.setdefault((layer, rows), []).append(seen)
        return outputs[None]

    def finish_block(self, block: int) -> None:
        """Count a block as read once all layers have seen it."""
        self.seen += block

    def freeze(self) -> KVCache:
        """The cache of the whole prompt."""
        assert self.seen == self.tokens
        return KVCache(tuple(self._freeze_layer(layer) for layer in sorted(self._keys)), self.seen)

    def _freeze_layer(self, layer: int) -> LayerCache:
        windows = tuple(_joined(self._rows[layer, rows]) for rows in self.windows)
        return from_dense(layer, self._query_heads[layer], self._keys[layer], self._values[layer], windows)


def _joined(parts: list[Window]) -> Window:
    """The rows of consecutive blocks as one record."""
    return Window(
        torch.cat([part.queries for part in parts], dim=1),
        torch.cat([part.outputs for part in parts], dim=1),
        torch.cat([part.lse for part in parts], dim=1),
        parts[0].scaling,
    )
