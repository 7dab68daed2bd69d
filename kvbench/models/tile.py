"""A tile: cells of one prompt that decode as one batch, each over its own frozen prefix and its own dense tail.

A segment is one stored head of one cell. Segments of a layer are ordered by prefix length, so that those of equal
length are one dense batch without padding and only truly ragged heads are attended to one by one. A tile has a fixed
number of cells; missing ones are empty, so that the model's own matrices have one shape however many cells ran.

A tile copies the prefixes it is built from: drop the caches once it stands.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import mul

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kvbench.attention import over_prefix_and_tail
from kvbench.cache import KVCache, LayerCache, storage_bytes


@dataclass(frozen=True)
class Run:
    """Segments start to stop of the ordered layer, which all have a prefix of the same length."""

    start: int
    stop: int
    keys: Float[Tensor, "segments prefix head_dim"]
    values: Float[Tensor, "segments prefix head_dim"]


@dataclass(frozen=True)
class TileLayer:
    """One layer of a tile: runs of equal length, and the tails in the same order."""

    order: Int[Tensor, "segments"]
    inverse: Int[Tensor, "segments"]
    runs: tuple[Run, ...]
    tail_keys: Float[Tensor, "segments room head_dim"]
    tail_values: Float[Tensor, "segments room head_dim"]


class Tile:
    """The reader of a batch of cells. `room` tokens can be read after the prefix."""

    def __init__(self, caches: Sequence[KVCache], cells: int, room: int) -> None:
        assert 0 < len(caches) <= cells and len({cache.seen for cache in caches}) == 1
        self.cells, self.real, self.room = cells, len(caches), room
        self.seen = caches[0].seen
        self._pairs = [[layer.offsets[-1] for layer in cache.layers] for cache in caches]
        self.used = 0
        self._layers = {
            layers[0].index: _order(layers, cells, room)
            for layers in zip(*(cache.layers for cache in caches), strict=True)
        }

    def attend(
        self,
        layer: int,
        queries: Float[Tensor, "cells heads new head_dim"],
        keys: Float[Tensor, "cells kv_heads new head_dim"],
        values: Float[Tensor, "cells kv_heads new head_dim"],
        scaling: float,
    ) -> Float[Tensor, "cells heads new head_dim"]:
        """Append the new tokens to the tails; every row sees its prefix and, causally, its tail."""
        state = self._layers[layer]
        cells, heads, new, head_dim = queries.shape
        stored = state.order.shape[0] // cells
        stop = self.used + new
        for tail, fresh in ((state.tail_keys, keys), (state.tail_values, values)):
            repeated = fresh.repeat_interleave(stored // fresh.shape[1], dim=1).reshape(-1, new, head_dim)
            tail[:, self.used : stop] = repeated.index_select(0, state.order)
        rows = queries.reshape(cells * stored, heads // stored * new, head_dim).index_select(0, state.order)
        mask = self._hidden_tail(new, heads // stored, queries.device)
        outputs = [
            over_prefix_and_tail(
                rows[run.start : run.stop],
                run.keys,
                run.values,
                state.tail_keys[run.start : run.stop, :stop],
                state.tail_values[run.start : run.stop, :stop],
                mask,
                scaling,
            )
            for run in state.runs
        ]
        return torch.cat(outputs).index_select(0, state.inverse).view(cells, heads, new, head_dim)

    def finish(self, new: int) -> None:
        """Count tokens as read once all layers have seen them."""
        self.used += new

    @property
    def allocated_bytes(self) -> list[int]:
        """Bytes that each real cell occupies while it decodes: its pairs and its preallocated tails."""
        layers = self._layers.values()
        a_pair = [2 * layer.tail_keys.shape[-1] * layer.tail_keys.itemsize for layer in layers]
        tails = storage_bytes(tail for layer in layers for tail in (layer.tail_keys, layer.tail_values)) // self.cells
        return [tails + sum(map(mul, pairs, a_pair)) for pairs in self._pairs]

    @property
    def storage_bytes(self) -> int:
        """Bytes of all key and value storages, empty cells included."""
        runs = (part for layer in self._layers.values() for run in layer.runs for part in (run.keys, run.values))
        tails = (part for layer in self._layers.values() for part in (layer.tail_keys, layer.tail_values))
        return storage_bytes((*runs, *tails))

    def _hidden_tail(self, new: int, group: int, device: torch.device) -> Bool[Tensor, "rows tail"] | None:
        if new == 1:
            return None
        stop = self.used + new
        visible_until = torch.arange(self.used, stop, device=device).repeat(group)
        return torch.arange(stop, device=device) > visible_until[:, None]


def _order(layers: Sequence[LayerCache], cells: int, room: int) -> TileLayer:
    """Lay the stored heads of all cells side by side, shortest prefix first."""
    stored = layers[0].stored_heads
    assert {layer.stored_heads for layer in layers} == {stored}, "cells of a tile share one layout"
    segments = [
        (stop - start, layer, start, stop)
        for layer in layers
        for start, stop in zip(layer.offsets, layer.offsets[1:], strict=False)
    ]
    segments += [(0, layers[0], 0, 0)] * ((cells - len(layers)) * stored)
    order = sorted(range(len(segments)), key=lambda index: segments[index][0])
    runs, start = [], 0
    for length, members in groupby((segments[index] for index in order), key=lambda segment: segment[0]):
        members = list(members)
        keys = torch.stack([layer.keys[begin:end] for _, layer, begin, end in members])
        values = torch.stack([layer.values[begin:end] for _, layer, begin, end in members])
        assert keys.shape[1] == length
        runs.append(Run(start, start + len(members), keys, values))
        start += len(members)
    like = layers[0].keys
    permutation = torch.tensor(order, device=like.device)
    tail = (len(segments), room, like.shape[1])
    return TileLayer(permutation, permutation.argsort(), tuple(runs), like.new_zeros(tail), like.new_zeros(tail))
