"""The prefill of a prompt: a dense cache that grows while the prompt is read, and the inputs of scores."""

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import starmap
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from kvbench.cache.attention import ROW_BLOCK, AttentionParams, causal_with_lse, fused, observe
from kvbench.cache.kernels.choice import Kernels
from kvbench.cache.kv_cache import KVCache, LayerCache, ObservationWindow, from_dense
from kvbench.cache.recurrent import RecurrentState
from kvbench.cache.shapes import Scores
from kvbench.eviction.scores.score import AttentionCall, Score, Summed
from kvbench.models.marks import Mark, mark, seconds_between
from kvbench.models.rope import QueryMoments
from kvbench.support.errors import UserError, blaming

Heads = Float[Tensor, "1 heads new head_dim"]
KVHeads = Float[Tensor, "1 kv_heads new head_dim"]

MANY = 512
"""Up to so many window rows, log-sum-exp is recomputed in float32; for more it is taken from the pass itself."""

Attend = Callable[[Tensor, Tensor, Tensor, AttentionParams], Tensor]
"""(queries, keys, values, rule) -> outputs: how the newest rows attend to all tokens read so far."""


Record = Callable[[int, int, ObservationWindow, int], None]
"""(layer, rows of the window, its rows in this pass, rows so far) -> None: stores the rows, or adds their scores."""

Together = Callable[[int, int], int]
"""(evictable layers so far, numbers in the keys of the next) -> how many layers lie in one array from there on."""


@dataclass
class StackRecord:
    """Arrays of `size` consecutive evictable layers, by what they hold. common: what the layers have in common."""

    size: int
    common: Hashable
    layers: list[int] = field(default_factory=list)
    arrays: dict[Hashable, Float[Tensor, "layers *part"]] = field(default_factory=dict)

    def room(self, name: Hashable, layer: int, shape: Sequence[int], like: Tensor) -> Float[Tensor, "*part"]:
        """Return the part of a layer in the array of that name."""
        if name not in self.arrays:
            self.arrays[name] = like.new_empty(self.size, *shape)
        return self.arrays[name][self.layers.index(layer)]

    @property
    def whole(self) -> bool:
        """Whether as many layers came as there is room for."""
        return len(self.layers) == self.size

    def freeze(self, layer: LayerCache) -> LayerCache:
        """Return the layers as one. layer: the first."""
        keys, values = self.arrays["keys"].flatten(0, 1), self.arrays["values"].flatten(0, 1)
        windows = []
        for window in layer.windows:
            rows, names = window.queries.shape[1], window.arrays
            windows.append(replace(window, **{name: self.arrays[rows, name].flatten(0, 1) for name in names}))
        stack = from_dense(layer.index, self.size * layer.query_heads, keys, values, tuple(windows))
        summed = {name: self.arrays[name].flatten(0, 1) for name in layer.recordings if name in self.arrays}
        return replace(stack, layers=self.size, recordings=summed)


@dataclass
class LayerRecord:
    """Records of a layer: keys and values with room for the prompt, windows by their rows, sums over the
    queries, and numbers by score. Of a local layer: the tokens that later tokens can attend to.
    """

    query_heads: int
    rule: AttentionParams
    keys: Float[Tensor, "kv_heads room head_dim"]
    values: Float[Tensor, "kv_heads room head_dim"]
    stack: StackRecord | None = None
    moments: Sequence[QueryMoments] = ()
    projections: Mapping[str, Tensor] = field(default_factory=dict)
    windows: dict[int, ObservationWindow] = field(default_factory=dict)
    recordings: dict[Score | Summed, Tensor] = field(default_factory=dict)

    def freeze(self, index: int, num_tokens: int) -> LayerCache:
        """Return the layer after `num_tokens` tokens."""
        layer = from_dense(index, self.query_heads, self.keys, self.values)
        if self.rule.sliding_window is not None:
            positions = layer.positions + (num_tokens - layer.lengths[0])
            return replace(layer, positions=positions, sliding_window=self.rule.sliding_window)
        return replace(
            layer,
            windows=tuple(self.windows[rows] for rows in sorted(self.windows)),
            future_queries=tuple(moments.statistics(num_tokens, self.rule.scaling) for moments in self.moments),
            recordings=self.recordings,
            projections=self.projections,
        )


class Prefill:
    """The cache that a prompt of `tokens` tokens is read into.

    windows: for each number, that many of the newest rows of every evictable layer are recorded. Each number has its
    own record: the last bits of a log-sum-exp depend on how many rows are multiplied at once, and a cell's scores must
    not depend on other cells. moments: sums over the queries of an evictable layer. kernels: of sums over the rows.
    projections: matrices of the model, given a layer and the width of all its heads. hidden_scores: read the hidden
    states that `receive` gets; the states of one layer and pass are held at a time. together: how many layers lie in
    one array; by default each by itself. summed: raw scores over all rows, for which none is recorded; `seconds` has
    what they took.

    A layer with a sliding window is local and holds only tokens that a later token can attend to: sliding_window - 1.
    If no sequence of `max_length` tokens is longer than the window, the layer is treated like any other.
    """

    alone: ClassVar[bool] = True

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
        together: Together = lambda before, numbers: 1,
        summed: Collection[Summed] = (),
    ) -> None:
        self.tokens = tokens
        self.windows = sorted({min(rows, tokens) for rows in windows})
        self.max_length = max_length
        self.num_tokens = 0
        self.recurrent: RecurrentState | None = None
        self._attend, self._moments, self._projections = attend, moments, projections
        self._kernels: Kernels = kernels
        self._hidden_scores, self._together = hidden_scores, together
        self._spans: dict[Summed, list[tuple[Mark, Mark]]] = {request: [] for request in summed}
        self._stacks: list[StackRecord] = []
        self._call: AttentionCall | None = None
        self._layers: dict[int, LayerRecord] = {}

    def attend(self, layer: int, queries: Heads, keys: KVHeads, values: KVHeads, rule: AttentionParams) -> Heads:
        """Store the block, attend causally to all tokens read so far, record the rows of the windows."""
        call, self._call = self._call, None
        rule = rule.within(self.max_length)
        if rule.sliding_window is not None:
            return self._attend_locally(layer, queries, keys, values, rule, rule.sliding_window)
        _, heads, block, head_dim = queries.shape
        if layer not in self._layers:
            matrices, stack = self._projections(layer, heads * head_dim), self._stack(layer, heads, keys, values, rule)
            own_keys, own_values = (
                stack.room(name, layer, (part.shape[1], self.tokens, part.shape[3]), part)
                for name, part in (("keys", keys), ("values", values))
            )
            self._layers[layer] = LayerRecord(heads, rule, own_keys, own_values, stack, self._moments(layer), matrices)
        record, stop = self._layers[layer], self.num_tokens + block
        for moments in record.moments:
            moments.add(queries[0], self.num_tokens)
        if self._hidden_scores:
            self._read_hidden(layer, call, queries[0], keys, values)
        record.keys[:, self.num_tokens : stop] = keys[0]
        record.values[:, self.num_tokens : stop] = values[0]
        read_keys, read_values = record.keys[:, :stop], record.values[:, :stop]
        # In half precision the log-sum-exp of torch's attention has an error of 1e-4, so that it is recomputed.
        returns_lse = self._attend is fused and queries.device.type == "cpu" and queries.dtype.itemsize >= 4
        returns_lse = returns_lse and rule.softcap is None and rule.sinks is None
        every: tuple[tuple[int, Record], ...] = ((self.tokens, self._add),) if self._spans else ()
        records: list[tuple[int, Record]] = [*((rows, self._record) for rows in self.windows), *every]
        if returns_lse and any(rows > MANY for rows, _ in records):
            outputs, lse = causal_with_lse(queries[0], read_keys, read_values, rule.scaling)
        else:
            outputs, lse = self._attend(queries[0], read_keys, read_values, rule), None
        for rows, keep in records:
            count = min(block, stop - (self.tokens - rows))
            if count > 0:
                newest = queries[0, :, -count:], outputs[:, -count:]
                if lse is not None and rows > MANY:
                    window = ObservationWindow(*newest, lse[:, -count:], rule.scaling)
                else:
                    record_rows = observe if rule.choice is None else rule.choice.observer(self.tokens)
                    window = record_rows(*newest, read_keys, rule)
                keep(layer, rows, replace(window, kernels=self._kernels), rows - (self.tokens - stop))
        return outputs[None]

    def _stack(self, layer: int, heads: int, keys: KVHeads, values: KVHeads, rule: AttentionParams) -> StackRecord:
        """Return the stack of a new layer: the newest, if it has room and layers of this shape."""
        shapes = keys.shape[1], keys.shape[3], values.shape[3]
        common = heads, shapes, keys.dtype, keys.device, rule.scaling, rule.softcap
        if not self._stacks or self._stacks[-1].whole or self._stacks[-1].common != common:
            before = sum(len(stack.layers) for stack in self._stacks)
            self._stacks.append(StackRecord(self._together(before, shapes[0] * self.tokens * shapes[1]), common))
        self._stacks[-1].layers.append(layer)
        return self._stacks[-1]

    def _record(self, layer: int, rows: int, window: ObservationWindow, stop: int) -> None:
        """Copy rows into the preallocated window of a layer, up to row `stop`: a view would hold the whole block."""
        record, parts = self._layers[layer], window.arrays
        assert record.stack is not None
        if rows not in record.windows:
            arrays = {
                name: record.stack.room((rows, name), layer, (len(part), rows, *part.shape[2:]), part)
                for name, part in parts.items()
            }
            record.windows[rows] = replace(window, **arrays)
        for name, stored in record.windows[rows].arrays.items():
            stored[:, stop - parts[name].shape[1] : stop] = parts[name]

    def _add(self, layer: int, rows: int, window: ObservationWindow, stop: int) -> None:
        """Add the raw scores of rows up to row `stop` to the sums over earlier rows: on a CPU as many at a time as a
        score adds of recorded rows, so that the bits are the same.
        """
        record, first, on_cpu = self._layers[layer], stop - window.lse.shape[1], window.lse.device.type == "cpu"
        assert record.stack is not None
        for request, spans in self._spans.items():
            (score, reduce, skipped), began = request, mark((window.lse.device,))
            merge, last = score.over_rows(reduce), min(stop, rows - skipped)
            if request not in record.recordings:
                shape = record.query_heads, self.tokens
                record.recordings[request] = record.stack.room(request, layer, shape, window.lse).zero_()
            total = record.recordings[request]
            for start in range(first, last, ROW_BLOCK if on_cpu else rows):
                end = min(start + ROW_BLOCK, last) if on_cpu else last
                read = from_dense(layer, record.query_heads, record.keys[:, :end], record.values[:, :end])
                seen = window.part(start - first, end - first)
                with blaming("score", score):
                    part = score(read, seen, "sum" if merge == "mean" else reduce)
                total[:, :end] = torch.maximum(total[:, :end], part) if merge == "max" else total[:, :end] + part
            if merge == "mean" and first < rows - skipped == last > 1:
                total /= last
            spans.append((began, mark((window.lse.device,))))

    def receive(self, call: AttentionCall) -> None:
        """Take the hidden states that the attention of a layer is about to read."""
        self._call = call

    def _read_hidden(
        self, layer: int, call: AttentionCall | None, queries: Tensor, keys: KVHeads, values: KVHeads
    ) -> None:
        """Pass the hidden states of the new tokens to the scores that ask for them."""
        record, first = self._layers[layer], self.num_tokens
        new = from_dense(layer, record.query_heads, keys[0], values[0])
        new = replace(new, positions=new.positions + first, projections=record.projections)
        for score in self._hidden_scores:
            rows = read_hidden(score, new, call and call._replace(queries=queries))
            if score not in record.recordings:
                record.recordings[score] = rows.new_empty(len(rows), self.tokens)
            record.recordings[score][:, first : first + keys.shape[2]] = rows

    def _attend_locally(
        self, layer: int, queries: Heads, keys: KVHeads, values: KVHeads, rule: AttentionParams, sliding_window: int
    ) -> Heads:
        read_keys, read_values = keys[0], values[0]
        if layer in self._layers:
            read_keys = torch.cat((self._layers[layer].keys, read_keys), dim=1)
            read_values = torch.cat((self._layers[layer].values, read_values), dim=1)
        outputs = self._attend(queries[0], read_keys, read_values, rule)
        begin = max(0, read_keys.shape[1] - sliding_window + 1)
        newest = read_keys[:, begin:].clone(), read_values[:, begin:].clone()
        self._layers[layer] = LayerRecord(queries.shape[1], rule, *newest)
        return outputs[None]

    def finish_block(self, block: int) -> None:
        """Count a block as read once all layers have seen it."""
        self.num_tokens += block

    @property
    def seconds(self) -> dict[Summed, float]:
        """How long it took to sum each score."""
        return {request: sum(starmap(seconds_between, spans)) for request, spans in self._spans.items()}

    def freeze(self) -> KVCache:
        """Return the cache of the whole prompt."""
        assert self.num_tokens == self.tokens
        for stack in self._stacks:
            for record in (self._layers[layer] for layer in stack.layers if not stack.whole):
                record.keys, record.values = record.keys.clone(), record.values.clone()  # free the rest of the array
        layers = {index: self._layers[index].freeze(index, self.num_tokens) for index in sorted(self._layers)}
        cache = KVCache(tuple(layers.values()), self.num_tokens, recurrent=self.recurrent)
        indices, stacks = [layer for stack in self._stacks for layer in stack.layers], self._stacks
        if len(stacks) == len(indices) or indices != sorted(indices) or not all(stack.whole for stack in stacks):
            return cache
        return replace(cache, stacks=tuple(stack.freeze(layers[stack.layers[0]]) for stack in stacks))


def read_hidden(score: Score, layer: LayerCache, call: AttentionCall | None) -> Scores:
    """Return what a score remembers of new tokens, whose pairs alone `layer` holds.

    Raises UserError for an attention that is not called with their hidden states, and for numbers of another shape.
    """
    with blaming("score", score):
        new = layer.lengths[0]
        if call is None or call.module.layer_idx != layer.index or call.hidden.shape[1] != new:
            raise UserError(
                f"score {score.name}: the attention of layer {layer.index} of this model gives no access to its input; "
                "choose another score"
            )
        rows = score.read_call(layer, call).float()
        most = layer.cache_heads if score.inputs.hidden_states == "token" else layer.query_heads
        allowed = dict.fromkeys(str([heads, new]) for heads in (most, layer.cache_heads))
        if str(list(rows.shape)) not in allowed:
            expected = " or ".join(allowed)
            raise UserError(f"score {score.name}: read_hidden has shape {list(rows.shape)}, expected {expected}")
        return rows
