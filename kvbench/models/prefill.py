"""The reader of a prompt: reads it in blocks into a dense cache and records the inputs of scores."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from kvbench.cache.attention import Rule, causal_with_lse, fused, observe
from kvbench.cache.kernels.choice import Kernels
from kvbench.cache.kv_cache import KVCache, LayerCache, Window, from_dense
from kvbench.cache.recurrent import RecurrentState
from kvbench.eviction.scores.score import AttentionCall, Score
from kvbench.models.rope import QueryMoments
from kvbench.support.errors import UserError

Heads = Float[Tensor, "1 heads new head_dim"]
KVHeads = Float[Tensor, "1 kv_heads new head_dim"]

MANY = 512
"""Up to so many window rows, log-sum-exp is recomputed in float32; for more it is taken from the pass itself."""

Attend = Callable[[Tensor, Tensor, Tensor, Rule], Tensor]
"""(queries, keys, values, rule) -> outputs: how the newest rows attend to all tokens read so far."""


class Prefill:
    """The reader of a prompt of `tokens` tokens.

    windows: for each number, that many of the newest rows of every evictable layer are recorded. Each number has its
    own record: the last bits of a log-sum-exp depend on how many rows are multiplied at once, and a cell's scores must
    not depend on other cells. moments: sums over the queries of an evictable layer. kernels: of sums over the rows.
    projections: matrices of the model, given a layer and the width of all its heads. hidden_scores: read the hidden
    states that `receive` gets; those of one layer and pass are held at a time.

    A layer with a sliding window is local and holds only tokens that a later token can attend to: sliding_window - 1.
    If no sequence of `max_length` tokens is longer than the window, the layer is treated like any other.
    """

    def __init__(
        self,
        tokens: int,
        windows: Collection[int],
        max_length: int | None = None,
        attend: Attend = fused,
        moments: Callable[[int], Sequence[QueryMoments]] = lambda layer: (),
        kernels: Kernels = "torch",
        projections: Callable[[int, int], Mapping[str, Tensor]] = lambda layer, width: {},
        hidden_scores: Sequence[Score] = (),
    ) -> None:
        self.tokens = tokens
        self.windows = sorted({min(rows, tokens) for rows in windows})
        self.max_length = max_length
        self.num_tokens = 0
        self.recurrent: RecurrentState | None = None
        self._attend, self._make_moments, self._kernels = attend, moments, kernels
        self._find_projections, self._hidden_scores = projections, hidden_scores
        self._projections: dict[int, Mapping[str, Tensor]] = {}
        self._call: AttentionCall | None = None
        self._probed: dict[tuple[int, Score], Tensor] = {}
        self._moments: dict[int, Sequence[QueryMoments]] = {}
        self._scaling: dict[int, float] = {}
        self._keys: dict[int, Tensor] = {}
        self._values: dict[int, Tensor] = {}
        self._windows: dict[tuple[int, int], Window] = {}
        self._query_heads: dict[int, int] = {}
        self._local: dict[int, int] = {}

    def attend(self, layer: int, queries: Heads, keys: KVHeads, values: KVHeads, rule: Rule) -> Heads:
        """Store the block, attend causally to all tokens read so far, record the rows of the windows."""
        self._query_heads[layer] = queries.shape[1]
        call, self._call = self._call, None
        rule = rule.within(self.max_length)
        if rule.sliding_window is not None:
            return self._attend_locally(layer, queries, keys, values, rule, rule.sliding_window)
        if layer not in self._keys:
            shape = (keys.shape[1], self.tokens, keys.shape[3])
            self._keys[layer], self._values[layer] = keys.new_empty(shape), values.new_empty(shape)
            self._moments[layer], self._scaling[layer] = self._make_moments(layer), rule.scaling
            self._projections[layer] = self._find_projections(layer, queries.shape[1] * queries.shape[3])
        for moments in self._moments[layer]:
            moments.add(queries[0], self.num_tokens)
        self._read_hidden(layer, call, queries[0], keys[0], values[0])
        block = keys.shape[2]
        stop = self.num_tokens + block
        self._keys[layer][:, self.num_tokens : stop] = keys[0]
        self._values[layer][:, self.num_tokens : stop] = values[0]
        read_keys, read_values = self._keys[layer][:, :stop], self._values[layer][:, :stop]
        # In half precision the log-sum-exp of torch's attention has an error of 1e-4, so that it is recomputed.
        returns_lse = self._attend is fused and queries.device.type == "cpu" and queries.dtype.itemsize >= 4
        returns_lse = returns_lse and rule.softcap is None and rule.sinks is None
        if returns_lse and any(rows > MANY for rows in self.windows):
            outputs, lse = causal_with_lse(queries[0], read_keys, read_values, rule.scaling)
        else:
            outputs, lse = self._attend(queries[0], read_keys, read_values, rule), None
        for rows in self.windows:
            count = min(block, stop - (self.tokens - rows))
            if count > 0:
                newest = queries[0, :, -count:], outputs[:, -count:]
                if lse is not None and rows > MANY:
                    window = Window(*newest, lse[:, -count:], rule.scaling)
                else:
                    window = observe(*newest, read_keys, rule.scaling, rule.softcap, rule.sinks)
                self._record(layer, rows, window, rows - (self.tokens - stop))
        return outputs[None]

    def _record(self, layer: int, rows: int, window: Window, stop: int) -> None:
        """Copy rows into the preallocated record of a layer, up to row `stop`: a view would hold the whole block."""
        parts = (window.queries, window.outputs, window.lse)
        if (layer, rows) not in self._windows:
            queries, outputs, lse = (part.new_empty(len(part), rows, *part.shape[2:]) for part in parts)
            self._windows[layer, rows] = replace(
                window, queries=queries, outputs=outputs, lse=lse, kernels=self._kernels
            )
        record = self._windows[layer, rows]
        for stored, part in zip((record.queries, record.outputs, record.lse), parts, strict=True):
            stored[:, stop - part.shape[1] : stop] = part

    def receive(self, call: AttentionCall) -> None:
        """Take the hidden states that the attention of a layer is about to read."""
        self._call = call

    def _read_hidden(
        self, layer: int, call: AttentionCall | None, queries: Tensor, keys: Tensor, values: Tensor
    ) -> None:
        """Pass the hidden states of the new tokens to the scores that ask for them."""
        if not self._hidden_scores:
            return
        if call is None or call.module.layer_idx != layer or call.hidden.shape[1] != keys.shape[1]:
            names = ", ".join(score.name for score in self._hidden_scores)
            raise UserError(
                f"score {names}: the attention of layer {layer} of this model gives no access to its input; choose "
                "another score"
            )
        query_heads, first = self._query_heads[layer], self.num_tokens
        new = from_dense(layer, query_heads, keys, values)
        new = replace(new, positions=new.positions + first, projections=self._projections[layer])
        for score in self._hidden_scores:
            rows = score.read_call(new, call._replace(queries=queries)).float()
            shape = rows.shape[0], keys.shape[1]
            if shape[0] not in (query_heads, keys.shape[0]) or tuple(rows.shape) != shape:
                expected = " or ".join(str([heads, shape[1]]) for heads in {query_heads, keys.shape[0]})
                raise UserError(f"score {score.name}: read_hidden has shape {list(rows.shape)}, expected {expected}")
            if (layer, score) not in self._probed:
                self._probed[layer, score] = rows.new_empty(shape[0], self.tokens)
            self._probed[layer, score][:, first : first + shape[1]] = rows

    def _attend_locally(
        self, layer: int, queries: Heads, keys: KVHeads, values: KVHeads, rule: Rule, sliding_window: int
    ) -> Heads:
        read_keys, read_values = keys[0], values[0]
        if layer in self._local:
            read_keys = torch.cat((self._keys[layer], read_keys), dim=1)
            read_values = torch.cat((self._values[layer], read_values), dim=1)
        outputs = self._attend(queries[0], read_keys, read_values, rule)
        begin = max(0, read_keys.shape[1] - sliding_window + 1)
        self._local[layer] = sliding_window
        self._keys[layer], self._values[layer] = read_keys[:, begin:].clone(), read_values[:, begin:].clone()
        return outputs[None]

    def finish_block(self, block: int) -> None:
        """Count a block as read once all layers have seen it."""
        self.num_tokens += block

    def freeze(self) -> KVCache:
        """The cache of the whole prompt."""
        assert self.num_tokens == self.tokens
        layers = tuple(self._freeze_layer(layer) for layer in sorted(self._keys))
        return KVCache(layers, self.num_tokens, recurrent=self.recurrent)

    def _freeze_layer(self, layer: int) -> LayerCache:
        if layer in self._local:
            newest = from_dense(layer, self._query_heads[layer], self._keys[layer], self._values[layer])
            positions = newest.positions + (self.num_tokens - newest.lengths[0])
            return replace(newest, positions=positions, sliding_window=self._local[layer])
        windows = tuple(self._windows[layer, rows] for rows in self.windows)
        dense = from_dense(layer, self._query_heads[layer], self._keys[layer], self._values[layer], windows)
        future_queries = (moments.statistics(self.num_tokens, self._scaling[layer]) for moments in self._moments[layer])
        return replace(
            dense,
            future_queries=tuple(future_queries),
            probed={score: self._probed[layer, score] for score in self._hidden_scores},
            projections=self._projections[layer],
        )
