"""A tile: cells of one prompt that decode as one batch, each over its own frozen prefix and its own dense tail.

A segment is one stored head of one cell. Segments of a layer are ordered by prefix length, so that those of equal
length are one dense batch without padding and only truly ragged heads are attended to one by one. A tile has a fixed
number of cells; missing ones hold nothing and are given zeros, so that the model's own matrices have one shape however
many cells ran.

A tile copies the prefixes it is built from, layer by layer. Caches that an iterator hands over and nobody else holds
are freed on the way, so that only one layer of them is there twice.

Where a kernel attends to the prefixes (`kernels`), they lie in one flat store instead of runs, and what it says is
merged with the tail by log-sum-exp. Local layers hide a part of their prefix and stay in plain PyTorch.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import mul

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kvbench.attention import Rule, hidden, over_prefix_and_tail
from kvbench.cache import KVCache, LayerCache, storage_bytes
from kvbench.kernels.choice import ragged_decode_of
from kvbench.kernels.names import Kernels
from kvbench.models.flat_prefix import FlatPrefix, flat_prefix


@dataclass(frozen=True)
class Run:
    """Segments start to stop of the ordered layer, which all have a prefix of the same length."""

    start: int
    stop: int
    keys: Float[Tensor, "segments prefix head_dim"]
    values: Float[Tensor, "segments prefix head_dim"]


@dataclass(frozen=True)
class TileLayer:
    """One layer of a tile: runs of equal length, and the tails in the same order.

    order, inverse: None where the segments stand in it already.
    """

    order: Int[Tensor, "segments"] | None
    inverse: Int[Tensor, "segments"] | None
    runs: tuple[Run, ...]
    tail_keys: Float[Tensor, "segments room head_dim"]
    tail_values: Float[Tensor, "segments room head_dim"]
    sliding_window: int | None
    flat: FlatPrefix | None = None

    def sorted(self, parts: Float[Tensor, "segments *rest"]) -> Float[Tensor, "segments *rest"]:
        """What stands by cell and stored head, in the order of the layer."""
        return parts.contiguous() if self.order is None else parts.index_select(0, self.order)


class Tile:
    """The reader of a batch of cells. `room` tokens can be read after the prefix."""

    def __init__(self, caches: Iterable[KVCache], cells: int, room: int, kernels: Kernels = "torch") -> None:
        left, seen, self._first = [], set(), []
        for cache in caches:
            left.append(list(reversed(cache.layers)))
            seen.add(cache.seen)
            self._first.append(cache.position)
            del cache
        assert 0 < len(left) <= cells and len(seen) == 1 and len({len(layers) for layers in left}) == 1
        self.cells, self.real, self.room = cells, len(left), room
        self.seen, self.used = seen.pop(), 0
        self._first += [self.seen] * (cells - self.real)
        self._pairs = [[layer.offsets[-1] for layer in reversed(layers)] for layers in left]
        self._layers, self._decode = {}, ragged_decode_of(kernels)
        while left[0]:
            index = left[0][-1].index
            self._layers[index] = _order([layers.pop() for layers in left], room, self._decode is not None)

    def attend(
        self,
        layer: int,
        queries: Float[Tensor, "cells heads new head_dim"],
        keys: Float[Tensor, "cells kv_heads new head_dim"],
        values: Float[Tensor, "cells kv_heads new head_dim"],
        rule: Rule,
    ) -> Float[Tensor, "cells heads new head_dim"]:
        """Append the new tokens to the tails; every row sees its prefix and, causally, its tail.

        In a local layer a row sees only what stands inside its sliding window.
        """
        state, given, cells = self._layers[layer], queries.shape[0], self.real
        queries, keys, values = queries[:cells], keys[:cells], values[:cells]
        _, heads, new, head_dim = queries.shape
        stored = len(state.tail_keys) // cells
        stop = self.used + new
        for tail, fresh in ((state.tail_keys, keys), (state.tail_values, values)):
            repeated = fresh.repeat_interleave(stored // fresh.shape[1], dim=1).reshape(-1, new, head_dim)
            tail[:, self.used : stop] = state.sorted(repeated)
        rows = state.sorted(queries.reshape(cells * stored, heads // stored * new, head_dim))
        group = heads // stored
        sinks = sinks_by_row(rule.sinks, cells, stored, new, queries.dtype)
        tail = self._hidden(slice(self.seen, self.seen + stop), new, group, state, queries.device)
        outputs = []
        if state.flat is not None and self._decode is not None:
            tails = (part[:, :stop] for part in (state.tail_keys, state.tail_values))
            own = None if sinks is None else sinks.index_select(0, state.order)
            outputs.append(state.flat.attend(self._decode, rows, *tails, tail, rule, own))
        for run in state.runs:
            prefix = None
            if state.sliding_window is not None:
                columns = slice(self.seen - run.keys.shape[1], self.seen)
                prefix = self._hidden(columns, new, group, state, queries.device)
            segments = slice(run.start, run.stop)
            outputs.append(
                over_prefix_and_tail(
                    rows[segments],
                    run.keys,
                    run.values,
                    state.tail_keys[segments, :stop],
                    state.tail_values[segments, :stop],
                    tail,
                    rule.scaling,
                    hidden_prefix=prefix,
                    softcap=rule.softcap,
                    sinks=None if sinks is None else state.sorted(sinks)[segments],
                )
            )
        joined = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        joined = joined if state.inverse is None else joined.index_select(0, state.inverse)
        found = joined.view(cells, heads, new, head_dim)
        if cells == given:
            return found
        whole = queries.new_zeros(given, heads, new, head_dim)
        whole[:cells] = found
        return whole

    def finish(self, new: int) -> None:
        """Count tokens as read once all layers have seen them."""
        self.used += new

    def close(self, cell: int) -> None:
        """Nothing to do for a cell that has stopped: what is allocated for it does not grow."""

    @property
    def failures(self) -> dict[int, str]:
        """Cells that could not go on, and why: none, as nothing is cut here."""
        return {}

    @property
    def positions(self) -> list[int]:
        """The position of the next token of every cell."""
        return [first + self.used for first in self._first]

    @property
    def peak_bytes(self) -> list[int]:
        """Bytes that each real cell occupies while it decodes: its pairs and its preallocated tails."""
        layers = self._layers.values()
        a_pair = [2 * layer.tail_keys.shape[-1] * layer.tail_keys.itemsize for layer in layers]
        tails = storage_bytes(tail for layer in layers for tail in (layer.tail_keys, layer.tail_values)) // self.real
        return [tails + sum(map(mul, pairs, a_pair)) for pairs in self._pairs]

    @property
    def storage_bytes(self) -> int:
        """Bytes of all key and value storages."""
        layers = self._layers.values()
        prefixes = [prefix for layer in layers for prefix in (*layer.runs, layer.flat) if prefix is not None]
        tails = (part for layer in layers for part in (layer.tail_keys, layer.tail_values))
        return storage_bytes((*(part for prefix in prefixes for part in (prefix.keys, prefix.values)), *tails))

    def _hidden(
        self, positions: slice, new: int, group: int, layer: TileLayer, device: torch.device
    ) -> Bool[Tensor, "rows columns"] | None:
        """What the rows of a segment, `group` query heads of `new` tokens each, cannot see; None for nothing."""
        if new == 1 and layer.sliding_window is None:
            return None
        end = self.seen + self.used + new
        return hidden(new, end, positions, device, layer.sliding_window).repeat(group, 1)


def sinks_by_row(
    sinks: Float[Tensor, "heads"] | None, cells: int, stored: int, new: int, dtype: torch.dtype
) -> Float[Tensor, "segments rows"] | None:
    """The sink of every row of every segment, in the order of cells and stored heads."""
    if sinks is None:
        return None
    return sinks.to(dtype).view(stored, -1).repeat_interleave(new, dim=1).repeat(cells, 1)


def _order(layers: Sequence[LayerCache], room: int, flat: bool) -> TileLayer:
    """Lay the stored heads of all cells side by side, shortest prefix first; `flat`: for a kernel, where it may."""
    stored = layers[0].stored_heads
    assert {layer.stored_heads for layer in layers} == {stored}, "cells of a tile share one layout"
    segments = [
        (stop - start, layer, start, stop)
        for layer in layers
        for start, stop in zip(layer.offsets, layer.offsets[1:], strict=False)
    ]
    order = sorted(range(len(segments)), key=lambda index: segments[index][0])
    flat = flat and layers[0].sliding_window is None
    spans = [segments[index][1:] for index in order]
    runs, start = [], 0
    for length, members in groupby(
        () if flat else (segments[index] for index in order), key=lambda segment: segment[0]
    ):
        members = list(members)
        keys = torch.stack([layer.keys[begin:end] for _, layer, begin, end in members])
        values = torch.stack([layer.values[begin:end] for _, layer, begin, end in members])
        assert keys.shape[1] == length
        runs.append(Run(start, start + len(members), keys, values))
        start += len(members)
    like = layers[0].keys
    permutation = None if order == sorted(order) else torch.tensor(order, device=like.device)
    tail = (len(segments), room, like.shape[1])
    return TileLayer(
        permutation,
        None if permutation is None else permutation.argsort(),
        tuple(runs),
        like.new_zeros(tail),
        like.new_zeros(tail),
        layers[0].sliding_window,
        _flat(spans) if flat else None,
    )


def _flat(spans: Sequence[tuple[LayerCache, int, int]]) -> FlatPrefix:
    keys = [layer.keys[start:stop] for layer, start, stop in spans]
    return flat_prefix(keys, [layer.values[start:stop] for layer, start, stop in spans])
