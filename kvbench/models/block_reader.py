"""The reader of a prompt whose heads or layers share a budget, which is divided anew at the end of every block."""

from dataclasses import replace

from jaxtyping import Float
from torch import Tensor

from kvbench.cache.attention import Rule, over_layer
from kvbench.cache.kernels.choice import Kernels
from kvbench.cache.kv_cache import KVCache, LayerCache
from kvbench.cache.recurrent import RecurrentState
from kvbench.eviction.incremental import IncrementalEviction
from kvbench.eviction.ranking import Ranking
from kvbench.models.decode.local_layer import LocalLayer

Heads = Float[Tensor, "1 heads new head_dim"]
KVHeads = Float[Tensor, "1 kv_heads new head_dim"]


class BlockReader:
    """Reads a prompt block by block: every layer is ranked as it reads a block, and evicted from after the last layer.

    num_tokens: tokens read so far. read_bytes: bytes that they would take if nothing were evicted. peak_bytes: the most
    bytes held, those of a block before its eviction included. Raises UserError for a score that is not finite.
    """

    def __init__(self, stepping: IncrementalEviction, max_length: int | None, kernels: Kernels) -> None:
        self.num_tokens = self.read_bytes = self.peak_bytes = 0
        self.recurrent: RecurrentState | None = None
        self._stepping, self._max_length = stepping, max_length
        self._kernels: Kernels = kernels
        self._layers: dict[int, LayerCache] = {}
        self._rankings: dict[int, Ranking] = {}
        self._local: dict[int, LocalLayer] = {}

    def attend(self, layer: int, queries: Heads, keys: KVHeads, values: KVHeads, rule: Rule) -> Heads:
        """Append the block, attend to what the layer holds, and rank it."""
        rule = rule.within(self._max_length)
        if layer not in self._layers and layer not in self._local:
            empty = self._stepping.start(layer, queries.shape[1], keys.shape[1], keys)
            if rule.sliding_window is None:
                self._layers[layer] = empty
            else:  # what is never evicted from is cached as the model does
                offsets, window = (0,) * (keys.shape[1] + 1), rule.sliding_window
                self._local[layer] = LocalLayer([replace(empty, offsets=offsets, state={}, sliding_window=window)], 0)
        if layer in self._local:
            outputs = self._local[layer].attend(queries, keys, values, rule)
            self.read_bytes += self._local[layer].bytes_read
            return outputs
        self.read_bytes += keys.nbytes + values.nbytes
        grown = self._layers[layer].append(keys[0], values[0], self.num_tokens)
        rows = replace(over_layer(queries[0], grown, rule, self._kernels), kernels=self._kernels)
        self._layers[layer], self._rankings[layer] = self._stepping.rank_ragged(grown, rows)
        return rows.outputs[None]

    def finish_block(self, block: int) -> None:
        """Divide the budget once all layers have read the block, and evict from one layer after the other."""
        self.num_tokens += block
        self.peak_bytes = max(self.peak_bytes, self.freeze().bytes_allocated)
        indices = sorted(self._rankings)
        counts = self._stepping.divide([self._rankings[layer] for layer in indices], self.num_tokens)
        for layer, kept in zip(indices, counts, strict=True):
            self._layers[layer] = self._stepping.keep(self._layers[layer], self._rankings.pop(layer), kept).layer

    def freeze(self) -> KVCache:
        """What is held now."""
        layers = self._layers | {layer: local.layer_of(0) for layer, local in self._local.items()}
        return KVCache(tuple(layers[layer] for layer in sorted(layers)), self.num_tokens, recurrent=self.recurrent)
