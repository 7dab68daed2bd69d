"""A decode batch for kernels: what all cells keep of a layer lies in one flat store, whatever the lengths of heads."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kvbench.cache.attention import AttentionParams
from kvbench.cache.kernels.choice import Kernels, kernel_module, packages, ragged_decode_of
from kvbench.cache.kv_cache import CutCache, CutLayer, KVCache, LayerCache, copy_marked, marks
from kvbench.extras.gpu_decoding.flat_layer import FlatLayer, placed
from kvbench.extras.gpu_decoding.graph_batch import GraphBatch
from kvbench.extras.gpu_decoding.rooms import Room, Rooms
from kvbench.models.decode.batch import Heads, KVHeads, RaggedLayer, runs_of, sinks_by_row, unseen

Place = Callable[[Tensor, Tensor], tuple[Sequence[Tensor], list[FlatLayer]]]
"""From pairs of a kind, and the lengths of segments by layer, to memory for their pairs and the layers over it."""


class FlatBatch(GraphBatch):
    """Every cell over its own copy of what it keeps, in one flat store for all cells, which kernels attend to.

    What cells keep of one full cache is copied straight from it, to a room of `rooms` if there is one. Local layers,
    which mask a part of theirs, are runs in plain PyTorch, as in a `RaggedBatch`.
    """

    def __init__(
        self,
        caches: Iterable[KVCache | CutCache],
        cells: int,
        max_new_tokens: int,
        kernels: Kernels,
        rooms: Rooms | None = None,
    ) -> None:
        self._rooms, self._wholes = rooms, list[KVCache | None]()
        self._decode: Any = ragged_decode_of(kernels)
        self._tails: Any = kernel_module("tail", kernels) if kernels in packages() else None
        super().__init__(self._noted(caches), cells, max_new_tokens)
        if self._tails is None:
            self.uncaptured = f"model.kernels={kernels}"
        if rooms is not None and not self._local:
            self.unshared = "layers of several shapes, or little memory"

    def _noted(self, caches: Iterable[KVCache | CutCache]) -> Iterator[KVCache | CutCache]:
        """Yield the caches; note the full cache that each is cut from."""
        for cache in caches:
            self._wholes.append(cache.whole if isinstance(cache, CutCache) else None)
            yield cache
            del cache

    def _laid_out(self, remaining: Sequence[list[LayerCache | CutLayer]]) -> dict[int, RaggedLayer]:
        self.room = None if self._rooms is None or self._local else self._enter(self._rooms, remaining)
        place: Place = partial(placed, self.max_new_tokens) if self.room is None else self.room.place
        laid_out = dict[int, RaggedLayer]()
        if (whole := _common(self._wholes)) is not None:
            by_layer = list(zip(*map(reversed, remaining), strict=True))
            cut = [layers for layers in by_layer if isinstance(layers[0], CutLayer)]
            remaining = [[layer for layer in layers if not isinstance(layer, CutLayer)] for layers in remaining]
            for stack in whole.stacked:
                laid_out |= _copied_from(stack, cut[: stack.layers], place)
                del cut[: stack.layers]
        self._wholes.clear()
        while remaining[0]:
            layers = [of_cell.pop() for of_cell in remaining]
            if layers[0].sliding_window is None:
                laid_out[layers[0].index] = _joined(_copied(layers), place)
            else:
                laid_out[layers[0].index] = runs_of(layers, self.max_new_tokens)
        return laid_out

    def _enter(self, rooms: Rooms, cells: Sequence[Sequence[LayerCache | CutLayer]]) -> Room | None:
        """Return a room for the layers of all cells, if these are alike."""
        likes = [layer.whole.keys if isinstance(layer, CutLayer) else layer.keys for layer in cells[0]]
        kinds = zip(cells[0], likes, strict=True)
        if len({(len(layer.lengths), like.shape[1], like.dtype, like.device) for layer, like in kinds}) > 1:
            return None
        pairs, longest = sum(map(sum, self._pairs)), max(max(layer.lengths) for layers in cells for layer in layers)
        heads = tuple(len(layers[0].lengths) for layers in cells)
        room = rooms.take(self, likes[0], len(likes), heads, (pairs, longest, self.max_new_tokens))
        if room is not None:
            self._past[likes[0].device] = room.past
        return room

    def _attend(self, layer: int, queries: Heads, keys: KVHeads, values: KVHeads, rule: AttentionParams) -> Heads:
        state = self._layers[layer]
        if not isinstance(state, FlatLayer):
            return super()._attend(layer, queries, keys, values, rule)
        if self._tails is None:
            return self._attend_and_merge(state, queries, keys, values, rule)
        past, tails = self._past_on(queries.device), (state.tail_keys, state.tail_values)
        self._tails.append(*tails, keys, values, past)  # four launches, which are the same in every step
        rows = queries.reshape(state.segments, -1, queries.shape[3])
        prefix, options = state.prefix(self._decode, rows, rule), (rule.scaling, rule.softcap, rule.sinks)
        return self._tails.with_tail(rows, *prefix, *tails, past, queries.shape[2], *options).view(queries.shape)

    def _attend_and_merge(
        self, state: FlatLayer, queries: Heads, keys: KVHeads, values: KVHeads, rule: AttentionParams
    ) -> Heads:
        """`_attend` by a kernel for prefixes alone, and PyTorch for the tails."""
        cells, heads, new, head_dim = queries.shape
        cache_heads, tail = state.segments // cells, self.num_new_tokens + new
        group, end = heads // cache_heads, self.num_tokens + tail
        for store, part in zip((state.tail_keys, state.tail_values), (keys, values), strict=True):
            store[:, self.num_new_tokens : tail] = state.fresh(part, cache_heads)
        rows = state.sorted(queries.reshape(state.segments, group * new, head_dim))
        sinks = sinks_by_row(rule.sinks, cells, cache_heads, new, queries.dtype)
        hidden_tail = unseen(slice(self.num_tokens, end), new, end, group, None, queries.device)
        return state.attend(self._decode, rows, tail, hidden_tail, rule, sinks).view(queries.shape)

    def narrow(self, cells: Sequence[int]) -> None:
        """Leave all cells in the store."""


def _common(wholes: Sequence[KVCache | None]) -> KVCache | None:
    """Return the full cache that all cells are cut from, with stacks if any of its equals has them; None: there is
    none.
    """
    caches = [whole for whole in wholes if whole is not None]
    if len(caches) < len(wholes) or any(each.layers[0].keys is not caches[0].layers[0].keys for each in caches):
        return None
    return next((whole for whole in caches if whole.stacks), caches[0])


def _copied(layers: Sequence[LayerCache | CutLayer]) -> list[LayerCache]:
    """Return a layer of all cells as each keeps it; what several keep of one full layer is copied at once."""
    cut = [layer for layer in layers if isinstance(layer, CutLayer) and not layer.keeps_all]
    if any(layer.whole.keys is not cut[0].whole.keys for layer in cut):
        cut = []
    copies = iter(_cut_together(cut) if cut else ())
    shared = set(map(id, cut))
    return [
        next(copies) if id(layer) in shared else layer.copied if isinstance(layer, CutLayer) else layer
        for layer in layers
    ]


def _cut_together(cut: Sequence[CutLayer]) -> list[LayerCache]:
    """Return what cells keep of one full layer, as views of one copy; nothing reads their positions."""
    whole, pairs = cut[0].whole, [sum(layer.lengths) for layer in cut]
    stores = [part.new_empty(sum(pairs), part.shape[1]) for part in (whole.keys, whole.values)]
    copy_marked(whole, marks(whole, [cut]), stores)
    unread, parts = whole.positions[:1], zip(cut, *(store.split(pairs) for store in stores), strict=True)
    return [
        replace(whole, keys=keys, values=values, positions=unread.expand(len(keys)), offsets=layer.offsets)
        for layer, keys, values in parts
    ]


def _copied_from(stack: LayerCache, cut: Sequence[Sequence[CutLayer]], place: Place) -> dict[int, RaggedLayer]:
    """Return the layers of a stack, by their indices. cut: what is kept, by layer and cell."""
    assert len({len(layer.lengths) for layers in cut for layer in layers}) == 1, "cells of a batch share one layout"
    sizes = torch.tensor([[length for layer in layers for length in layer.lengths] for layers in cut])
    stores, flat = place(stack.keys, sizes)
    copy_marked(stack, marks(stack, cut), stores)
    return {layers[0].index: own for layers, own in zip(cut, flat, strict=True)}


def _joined(layers: Sequence[LayerCache], place: Place) -> FlatLayer:
    """Return a layer of all cells."""
    sizes = torch.tensor([[length for layer in layers for length in layer.lengths]])
    assert len({layer.cache_heads for layer in layers}) == 1, "cells of a batch share one layout"
    stores, (flat,) = place(layers[0].keys, sizes)
    for store, parts in zip(stores, zip(*((layer.keys, layer.values) for layer in layers), strict=True), strict=True):
        torch.cat(parts, out=store)
    return flat
