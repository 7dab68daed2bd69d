"""Reading a prompt in blocks into a dense cache, recording the evidence that scores ask for on the way."""

import torch
from jaxtyping import Float
from torch import Tensor

from kvbench.attention import causal, observe
from kvbench.cache import KVCache, LayerCache, Window, from_dense

Heads = Float[Tensor, "1 heads new head_dim"]
KVHeads = Float[Tensor, "1 kv_heads new head_dim"]


class Prefill:
    """The reader of a prompt of `tokens` tokens; the newest `window` rows of each layer are recorded as evidence."""

    def __init__(self, tokens: int, window: int) -> None:
        self.tokens = tokens
        self.window = min(window, tokens)
        self.seen = 0
        self._keys: dict[int, Tensor] = {}
        self._values: dict[int, Tensor] = {}
        self._rows: dict[int, list[Window]] = {}
        self._query_heads: dict[int, int] = {}

    def attend(self, layer: int, queries: Heads, keys: KVHeads, values: KVHeads, scaling: float) -> Heads:
        """Store the block, attend causally to everything read so far, record the rows inside the window."""
        block = keys.shape[2]
        if layer not in self._keys:
            shape = (keys.shape[1], self.tokens, keys.shape[3])
            self._keys[layer], self._values[layer] = keys.new_empty(shape), values.new_empty(shape)
            self._rows[layer], self._query_heads[layer] = [], queries.shape[1]
        stop = self.seen + block
        self._keys[layer][:, self.seen : stop], self._values[layer][:, self.seen : stop] = keys[0], values[0]
        read_keys, read_values = self._keys[layer][:, :stop], self._values[layer][:, :stop]
        outputs = causal(queries[0], read_keys, read_values, scaling)
        voting = min(block, stop - (self.tokens - self.window))
        if voting > 0:
            self._rows[layer].append(observe(queries[0, :, -voting:], outputs[:, -voting:], read_keys, scaling))
        return outputs[None]

    def finish_block(self, block: int) -> None:
        """Count a block as read once all layers have seen it."""
        self.seen += block

    def freeze(self) -> KVCache:
        """The cache of the whole prompt."""
        assert self.seen == self.tokens
        return KVCache(tuple(self._freeze_layer(layer) for layer in sorted(self._keys)), self.seen)

    def _freeze_layer(self, layer: int) -> LayerCache:
        rows = self._rows[layer]
        window = None
        if rows:
            window = Window(
                torch.cat([part.queries for part in rows], dim=1),
                torch.cat([part.outputs for part in rows], dim=1),
                torch.cat([part.lse for part in rows], dim=1),
                rows[0].scaling,
            )
        return from_dense(layer, self._query_heads[layer], self._keys[layer], self._values[layer], window)
