"""A layer that the model limits by a sliding window: each cell holds the newest tokens, and nothing is scored."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from kvbench.cache.attention import AttentionParams, fused
from kvbench.cache.kv_cache import POSITION, LayerCache
from kvbench.models.decode.batch import Heads, KVHeads


class LocalLayer:
    """The local layer of several cells, which all hold the newest tokens before `num_tokens`, equally many.

    bytes_held, bytes_read: of each cell: what its cache holds, and the bytes by which that grew when last read.
    """

    def __init__(self, layers: Sequence[LayerCache], num_tokens: int) -> None:
        self._like, self._cells, self._end = layers[0], len(layers), num_tokens
        self._keys, self._values = (torch.cat(parts) for parts in zip(*(layer.dense for layer in layers), strict=True))
        self.bytes_read = 0

    @property
    def bytes_held(self) -> list[int]:
        """Bytes of the pairs and positions of each cell."""
        pairs = self._keys.shape[0] * self._keys.shape[1] // self._cells
        return [pairs * (2 * self._keys.shape[2] * self._keys.itemsize + POSITION.itemsize)] * self._cells

    def attend(self, queries: Heads, keys: KVHeads, values: KVHeads, rule: AttentionParams) -> Heads:
        """Append new tokens, attend within the window, and keep what later tokens can still attend to."""
        assert rule.sliding_window is not None
        held, new = self._keys.shape[1], keys.shape[2]
        grown_keys = torch.cat((self._keys, keys.flatten(0, 1)), dim=1)
        grown_values = torch.cat((self._values, values.flatten(0, 1)), dim=1)
        own = rule if rule.sinks is None else replace(rule, sinks=rule.sinks.repeat(self._cells))
        outputs = fused(queries.flatten(0, 1), grown_keys, grown_values, own)
        first = max(0, held + new - rule.sliding_window + 1)
        self._keys, self._values = grown_keys[:, first:], grown_values[:, first:]
        self._end += new
        self.bytes_read = 2 * (held + new - first - held) * self._keys.shape[2] * self._keys.itemsize
        self.bytes_read *= len(self._keys) // self._cells
        return outputs.view(queries.shape)

    def layer_of(self, cell: int) -> LayerCache:
        """Return a copy of the layer of a cell."""
        heads = len(self._keys) // self._cells
        own = slice(cell * heads, (cell + 1) * heads)
        keys, values = (part[own].flatten(0, 1).clone() for part in (self._keys, self._values))
        length = self._keys.shape[1]
        positions = torch.arange(self._end - length, self._end, dtype=POSITION, device=keys.device).repeat(heads)
        offsets = tuple(range(0, heads * length + 1, length)) if length else (0,) * (heads + 1)
        return replace(
            self._like, keys=keys, values=values, positions=positions, offsets=offsets, windows=(), recordings={}
        )
