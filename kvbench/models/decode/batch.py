"""A tile: cells of one prompt that decode as one batch, each over its own frozen prefix and its own dense tail.

A segment is one stored head of one cell. Segments of a layer are ordered by prefix length, so that those of equal
length are one dense batch without padding and only truly ragged heads are attended to one by one. A tile has a fixed
number of cells; missing ones hold nothing and are given zeros, so that the model's own matrices have one shape however
many cells ran.

A tile copies the prefixes it is built from, layer by layer, with room for the tail behind each. Caches that an iterator
hands over and nobody else holds are freed on the way, so that only one layer of them is there twice.

Where a kernel attends to the prefixes (`kernels`), they lie in one flat store instead of runs, the tails by themselves,
and what it says is merged by log-sum-exp. Local layers hide a part of their prefix and stay in plain PyTorch.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import mul

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kvbench.cache.attention import Rule, hidden, over_segments
from kvbench.cache.kernels.choice import Kernels, ragged_decode_of
from kvbench.cache.kv_cache import KVCache, LayerCache, storage_bytes
from kvbench.models.decode.varlen_prefix import VarlenPrefix, flat_prefix


@dataclass(frozen=True)
class Run:
    """Segments start to stop of the ordered layer: prefixes of one length, each with its tail behind."""

    start: int
    stop: int
    prefix: int
    keys: Float[Tensor, "segments prefix_and_room head_dim"]
    values: Float[Tensor, "segments prefix_and_room head_dim"]


@dataclass(frozen=True)
class FlatTile:
    """A layer for a kernel: prefixes in one store, tails in the order of the layer."""

    prefix: VarlenPrefix
    tail_keys: Float[Tensor, "segments room head_dim"]
    tail_values: Float[Tensor, "segments room head_dim"]


@dataclass(frozen=True)
class TileLayer:
    """One layer of a tile: runs of equal length, or a flat store.

    order, inverse: None where the segments stand in it already. pair_bytes: of a key and its value.
    """

    order: Int[Tensor, "segments"] | None
    inverse: Int[Tensor, "segments"] | None
    segments: int
    pair_bytes: int
    runs: tuple[Run, ...]
    sliding_window: int | None
    flat: FlatTile | None = None

    @property
    def stores(self) -> Iterator[Tensor]:
        """All that holds pairs."""
        for run in self.runs:
            yield from (run.keys, run.values)
        if self.flat is not None:
            yield from (self.flat.prefix.keys, self.flat.prefix.values, self.flat.tail_keys, self.flat.tail_values)

    def sorted(self, parts: Float[Tensor, "segments *rest"]) -> Float[Tensor, "segments *rest"]:
        """What stands by cell and stored head, in the order of the layer."""
        return parts.contiguous() if self.order is None else parts.index_select(0, self.order)


class DecodeBatch:
    """The reader of a batch of cells. `room` tokens can be read after the prefix."""

    def __init__(self, caches: Iterable[KVCache], cells: int, room: int, kernels: Kernels = "torch") -> None:
        left, seen, self._first = [], set(), []
        for cache in caches:
            left.append(list(reversed(cache.layers)))
            seen.add(cache.num_tokens)
            self._first.append(cache.position)
            del cache
        assert 0 < len(left) <= cells and len(seen) == 1 and len({len(layers) for layers in left}) == 1
        self.cells, self.real, self.room = cells, len(left), room
        self.num_tokens, self.used = seen.pop(), 0
        self._first += [self.num_tokens] * (cells - self.real)
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
        stored = state.segments // cells
        stop, group = self.used + new, heads // stored
        end = self.num_tokens + stop
        fresh = [_by_segment(state, part, stored) for part in (keys, values)]
        rows = state.sorted(queries.reshape(cells * stored, group * new, head_dim))
        sinks = sinks_by_row(rule.sinks, cells, stored, new, queries.dtype)
        sinks = None if sinks is None else state.sorted(sinks)
        tail = unseen(slice(self.num_tokens, end), new, end, group, state.sliding_window, queries.device)
        outputs = []
        if state.flat is not None and self._decode is not None:
            tails = state.flat.tail_keys[:, :stop], state.flat.tail_values[:, :stop]
            for part, one in zip(tails, fresh, strict=True):
                part[:, self.used :] = one
            outputs.append(state.flat.prefix.attend(self._decode, rows, *tails, tail, rule, sinks))
        for run in state.runs:
            segments, prefix = slice(run.start, run.stop), None
            held = run.keys[:, : run.prefix + stop], run.values[:, : run.prefix + stop]
            for part, one in zip(held, fresh, strict=True):
                part[:, run.prefix + self.used :] = one[segments]
            if state.sliding_window is not None:
                columns = slice(self.num_tokens - run.prefix, self.num_tokens)
                prefix = unseen(columns, new, end, group, state.sliding_window, queries.device)
            own = None if sinks is None else sinks[segments]
            outputs.append(
                over_segments(rows[segments], *held, tail, rule.scaling, prefix, softcap=rule.softcap, sinks=own)
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
        tails = sum(layer.segments * self.room * layer.pair_bytes for layer in layers) // self.real
        return [tails + sum(map(mul, pairs, (layer.pair_bytes for layer in layers))) for pairs in self._pairs]

    @property
    def storage_bytes(self) -> int:
        """Bytes of all key and value storages."""
        return storage_bytes(store for layer in self._layers.values() for store in layer.stores)


def unseen(
    positions: slice, new: int, end: int, group: int, window: int | None, device: torch.device
) -> Bool[Tensor, "rows columns"] | None:
    """What rows of a segment, `group` heads of the `new` newest tokens before `end`, cannot see; None for nothing."""
    return None if new == 1 and window is None else hidden(new, end, positions, device, window).repeat(group, 1)


def sinks_by_row(
    sinks: Float[Tensor, "heads"] | None, cells: int, stored: int, new: int, dtype: torch.dtype
) -> Float[Tensor, "segments rows"] | None:
    """The sink of every row of every segment, in the order of cells and stored heads."""
    if sinks is None:
        return None
    return sinks.to(dtype).view(stored, -1).repeat_interleave(new, dim=1).repeat(cells, 1)


def _order(layers: Sequence[LayerCache], room: int, flat: bool) -> TileLayer:
    """Lay the stored heads of all cells side by side, shortest prefix first; `flat`: for a kernel, where it may."""
    stored = layers[0].cache_heads
    assert {layer.cache_heads for layer in layers} == {stored}, "cells of a tile share one layout"
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
        own = list(members)
        keys = _with_room([layer.keys[begin:end] for _, layer, begin, end in own], room)
        values = _with_room([layer.values[begin:end] for _, layer, begin, end in own], room)
        runs.append(Run(start, start + len(keys), length, keys, values))
        start += len(keys)
    like = layers[0].keys
    permutation = None if order == sorted(order) else torch.tensor(order, device=like.device)
    return TileLayer(
        permutation,
        None if permutation is None else permutation.argsort(),
        len(segments),
        2 * like.shape[1] * like.itemsize,
        tuple(runs),
        layers[0].sliding_window,
        _flat(spans, room) if flat else None,
    )


def _with_room(prefixes: Sequence[Tensor], room: int) -> Float[Tensor, "segments prefix_and_room head_dim"]:
    length, head_dim = prefixes[0].shape
    found = prefixes[0].new_empty(len(prefixes), length + room, head_dim)
    for one, prefix in zip(found, prefixes, strict=True):
        one[:length] = prefix
    return found


def _by_segment(
    layer: TileLayer, fresh: Float[Tensor, "cells kv_heads new head_dim"], stored: int
) -> Float[Tensor, "segments new head_dim"]:
    """New pairs for each stored head, in the order of the layer."""
    copies = stored // fresh.shape[1]
    repeated = fresh if copies == 1 else fresh.repeat_interleave(copies, dim=1)
    return layer.sorted(repeated.reshape(-1, *fresh.shape[2:]))


def _flat(spans: Sequence[tuple[LayerCache, int, int]], room: int) -> FlatTile:
    keys = [layer.keys[start:stop] for layer, start, stop in spans]
    prefix = flat_prefix(keys, [layer.values[start:stop] for layer, start, stop in spans])
    tail = (len(spans), room, keys[0].shape[1])
    return FlatTile(prefix, keys[0].new_zeros(tail), keys[0].new_zeros(tail))
