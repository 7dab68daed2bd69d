"""Caches that are evicted from as they grow: block by block while a prompt is read, or every few tokens of an answer.

A layer evicts right after the attention of the newest tokens, whose output is not affected. Positions change only with
`policy.positions=cache`: kept pairs are then numbered 0, 1, ... again and new tokens follow them.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Int
from torch import Tensor

from kvbench.cache.attention import Rule
from kvbench.cache.kernels.choice import Kernels
from kvbench.cache.kv_cache import POSITION, ROTATED, KVCache, LayerCache, Window
from kvbench.cache.recurrent import RecurrentState, join_states
from kvbench.eviction.incremental import IncrementalEviction
from kvbench.models.decode.batch import CellPairs, DecodeBatch, Heads, KVHeads
from kvbench.models.decode.local_layer import LocalLayer
from kvbench.models.decode.slots import Reading, SlotLayer, capacity_of
from kvbench.models.decode.slots_in_order import SlotsInOrder
from kvbench.models.decode.slots_in_place import SlotsInPlace, evicts_in_place
from kvbench.models.rope import KeyReRotation


@dataclass
class EvictingCache:
    """A cache that evicts as soon as `every` or more tokens were read since its last eviction; None: never.

    cache: the initial cache, with the state that `stepping` added (`IncrementalEviction.remember`); None: empty. Local
    layers hold the tokens in their sliding window (all tokens if no sequence of `max_length` is longer). re_rotation:
    for `positions=cache`, how keys rotate. kernels: of attention with a single row and of sums over the window.
    num_tokens: tokens read so far. position: that of the next token. pending: tokens read since the last eviction.
    peak_bytes: the most bytes held between two forward passes. read_bytes: bytes of the tokens read here if nothing
    were evicted. recurrent: the state of layers without keys.
    """

    stepping: IncrementalEviction
    every: int | None
    cache: KVCache | None = None
    max_length: int | None = None
    re_rotation: KeyReRotation | None = None
    kernels: Kernels = "torch"
    num_tokens: int = 0
    position: int = 0
    pending: int = 0
    peak_bytes: int = 0
    read_bytes: int = 0
    recurrent: RecurrentState | None = None
    _layers: dict[int, LayerCache] = field(default_factory=dict)
    _rows: dict[int, Window] = field(default_factory=dict)
    _taken: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        renumbered = self.stepping.eviction.policy.positions == "cache"
        assert renumbered == (self.re_rotation is not None), "positions=cache goes with the model's re_rotation"
        if self.cache is not None:
            self.num_tokens, self.position = self.cache.num_tokens, self.cache.position
            self._layers = {layer.index: layer for layer in self.cache.layers}
            self.recurrent = self.cache.recurrent
            self.peak_bytes, self.cache = self.cache.bytes_allocated, None

    def finish(self, new: int, due: bool, held: int) -> None:
        """Count tokens as read once all layers have seen them, evicted if it was `due`, and hold so many bytes."""
        self.num_tokens += new
        self.position += new
        if due and self.re_rotation is not None and self._taken:
            self.position = min(self.position, capacity_of(self.stepping, min(self._taken), 0))
        self.pending = 0 if due else self.pending + new
        self.peak_bytes = max(self.peak_bytes, held)

    def evicts_in_place(self, new: int) -> bool:
        """Whether the newest pair of a head can take the slot of the one evicted for it."""
        fits = all(
            length <= capacity_of(self.stepping, layer.index, head)
            for layer in self._layers.values()
            for head, length in enumerate(layer.lengths)
            if layer.evictable
        )
        return new == 1 and self.every == 1 and fits and evicts_in_place(self.stepping)

    def take(self, layer: int, heads: int, keys: CellPairs, sliding_window: int | None) -> LayerCache:
        """A layer, to be held elsewhere until `give`; `keys` are like those of its new pairs."""
        self._taken.add(layer)
        if layer in self._layers:
            return self._layers.pop(layer)
        empty = self.stepping.start(layer, heads, keys.shape[0], keys)
        if sliding_window is not None:  # what is never evicted from is cached as the model does
            local = (0,) * (keys.shape[0] + 1)
            return replace(empty, offsets=local, state={}, sliding_window=sliding_window)
        return empty if self.re_rotation is None else replace(empty, state={**empty.state, ROTATED: keys.new_empty(0)})

    def pending_rows(self, layer: int) -> Window | None:
        """What the tokens of a layer saw that were read since the last eviction."""
        return self._rows.pop(layer, None)

    def give(self, layer: LayerCache, rows: Window | None = None) -> None:
        """Put a layer back, and what its newest tokens saw."""
        self._layers[layer.index] = layer
        self._taken.discard(layer.index)
        if rows is not None:
            self._rows[layer.index] = rows

    def freeze(self) -> KVCache:
        """The current cache, once a batch that read it is settled."""
        assert not self._taken, "layers of this cache are held by a batch: settle it first"
        layers = tuple(self._layers[layer] for layer in sorted(self._layers))
        return KVCache(layers, self.num_tokens, None if self.re_rotation is None else self.position, self.recurrent)


class EvictingBatch(DecodeBatch):
    """Cells whose caches are evicted from as they grow: those of an equal `_key` by the same operations."""

    def __init__(self, caches: Sequence[EvictingCache], cells: int, max_new_tokens: int) -> None:
        assert len({cache.num_tokens for cache in caches}) == 1
        assert not any(cache._taken for cache in caches), "settle the batch that read these caches first"
        recurrent = join_states([cache.recurrent for cache in caches])
        super().__init__(cells, len(caches), caches[0].num_tokens, max_new_tokens, recurrent)
        self.caches, self._closed, self._new = caches, set[int](), 0
        self._groups: list[list[int]] = []
        self._in_place: list[bool] = []
        self._pending: list[int] = []
        self._slots: dict[tuple[int, int], SlotLayer] = {}
        self._local: dict[int, LocalLayer] = {}
        self._fresh: dict[torch.device, Tensor] = {}
        self._rows: dict[tuple[int, torch.device], Tensor] = {}

    def _attend(self, layer: int, queries: Heads, keys: KVHeads, values: KVHeads, rule: Rule) -> Heads:
        """A cell that cannot evict is closed; `failures` says why."""
        if queries.shape[2] != self._new:
            self.settle()
            self._new = queries.shape[2]
            self._in_place = [cache.evicts_in_place(self._new) for cache in self.caches]
            self._groups, self._rows = self._alike(), {}
            self._pending = [self.caches[group[0]].pending for group in self._groups]
        rule = rule.within(self.caches[0].max_length)
        if rule.sliding_window is not None:
            return self._attend_locally(layer, queries, keys, values, rule)
        if len(self._groups) == 1:
            return self._attend_together(0, layer, queries, keys, values, rule)
        outputs = torch.zeros_like(queries)
        for number, group in enumerate(self._groups):
            if group[-1] - group[0] == len(group) - 1:
                rows = slice(group[0], group[-1] + 1)
                outputs[rows] = self._attend_together(number, layer, queries[rows], keys[rows], values[rows], rule)
                continue
            rows = self._rows_of(number, queries.device)
            own, new_keys, new_values = (part.index_select(0, rows) for part in (queries, keys, values))
            outputs.index_copy_(0, rows, self._attend_together(number, layer, own, new_keys, new_values, rule))
        return outputs

    def _rows_of(self, group: int, device: torch.device) -> Int[Tensor, "cells"]:
        """The rows of the cells of a group; the host does not wait for them."""
        if (group, device) not in self._rows:
            self._rows[group, device] = torch.tensor(self._groups[group]).to(device, non_blocking=True)
        return self._rows[group, device]

    def _alike(self) -> list[list[int]]:
        """The cells of each key; their layers are taken one by one, as tokens reach them."""
        groups: dict[Hashable, list[int]] = {}
        for cell, cache in enumerate(self.caches):
            groups.setdefault(_key(cache, self._new, self._in_place[cell]), []).append(cell)
        return list(groups.values())

    def _attend_together(
        self, group: int, layer: int, queries: Heads, keys: KVHeads, values: KVHeads, rule: Rule
    ) -> Heads:
        """`_attend` for the cells of a group."""
        caches = [self.caches[cell] for cell in self._groups[group]]
        first = caches[0]
        if (group, layer) not in self._slots:
            like = [cache.take(layer, queries.shape[1], new, None) for cache, new in zip(caches, keys, strict=True)]
            steppings = [cache.stepping for cache in caches]
            left = self.max_new_tokens - self.num_new_tokens
            re_rotation = next((cache.re_rotation for cache in caches if cache.re_rotation is not None), None)
            reading = Reading(self._new, left, first.every, first.kernels, re_rotation)
            rows = [cache.pending_rows(layer) for cache in caches]
            in_place = [self._in_place[cell] for cell in self._groups[group]]
            self._slots[group, layer] = (
                SlotsInPlace(like, steppings, reading)
                if in_place[0] and first.kernels != "triton"
                else SlotsInOrder(like, steppings, reading, rows, in_place)
            )
        for _, cache in self._open(self._groups[group]):
            cache.read_bytes += (keys.nbytes + values.nbytes) // len(keys)
        slots, token = self._slots[group, layer], self.num_tokens + self.num_new_tokens
        if keys.device not in self._fresh:
            numbers = torch.zeros(3, 1, self._new, dtype=POSITION)
            numbers[0] = torch.arange(token, token + self._new)
            self._fresh[keys.device] = numbers.to(keys.device, non_blocking=True)
        outputs = slots.attend(queries, keys, values, rule, token, self._fresh[keys.device], self._due(group))
        for place, reason in slots.failures.items():
            self._fail(self._groups[group][place], reason)
        return outputs

    def _attend_locally(self, layer: int, queries: Heads, keys: KVHeads, values: KVHeads, rule: Rule) -> Heads:
        """`_attend` for a layer that the model limits by a sliding window."""
        if layer not in self._local:
            taken = [
                cache.take(layer, queries.shape[1], new, rule.sliding_window)
                for cache, new in zip(self.caches, keys, strict=True)
            ]
            self._local[layer] = LocalLayer(taken, self.num_tokens + self.num_new_tokens)
        outputs = self._local[layer].attend(queries, keys, values, rule)
        for _, cache in self._open(range(self.num_active)):
            cache.read_bytes += self._local[layer].bytes_read
        return outputs

    def _due(self, group: int) -> bool:
        """Whether the cells of a group evict from the tokens that are being read."""
        every = self.caches[self._groups[group][0]].every
        return every is not None and self._pending[group] + self._new >= every

    def settle(self) -> None:
        """Give every cache its layers back."""
        for (group, _), slots in self._slots.items():
            for place, cell in enumerate(self._groups[group]):
                self.caches[cell].give(slots.layer_of(place), slots.rows_of(place))
        for local in self._local.values():
            for cell, cache in enumerate(self.caches):
                cache.give(local.layer_of(cell))
        self._slots, self._local, self._new = {}, {}, 0

    def close(self, cell: int) -> None:
        """Stop counting a cell: what its row says of memory must not depend on how long the answers of others are."""
        self._closed.add(cell)

    def finish(self, new: int) -> None:
        """Count tokens as read once all layers have seen them."""
        super().finish(new)
        held, due = [0] * self.num_active, [False] * self.num_active
        for number, group in enumerate(self._groups):
            evicted = self._due(number)
            self._pending[number] = 0 if evicted else self._pending[number] + new
            for cell in group:
                due[cell] = evicted
        for (group, _), slots in self._slots.items():
            for cell, size in zip(self._groups[group], slots.bytes_held, strict=True):
                held[cell] += size
        for local in self._local.values():
            held = [size + more for size, more in zip(held, local.bytes_held, strict=True)]
        self._check_scores()
        self._fresh.clear()
        for cell, cache in self._open(range(self.num_active)):
            if self.recurrent is not None:
                cache.recurrent = self.recurrent.part(cell, cell + 1)
            cache.finish(new, due[cell], held[cell])

    def _check_scores(self) -> None:
        """Close cells with a score that is NaN or inf. The host waits once for the device."""
        layers = [(key, slots, slots.broken) for key, slots in self._slots.items() if slots.broken is not None]
        if not layers:
            return
        device = layers[0][2].device  # layers may lie on several GPUs
        broken = torch.cat([flags.to(device, non_blocking=True) for *_, flags in layers]).tolist()
        for (group, layer), slots, _ in layers:
            segments, broken = broken[: len(slots.owners)], broken[len(slots.owners) :]
            for (place, _), wrong in zip(slots.owners, segments, strict=True):
                cell = self._groups[group][place]
                if wrong:
                    score = self.caches[cell].stepping.score.name
                    self._fail(cell, f"score {score} of layer {layer} is not finite: NaN or inf")
            slots.broken = None

    def _fail(self, cell: int, reason: str) -> None:
        if cell not in self._closed:
            self.failures[cell] = reason
            self.close(cell)

    def _open(self, cells: Sequence[int]) -> Iterator[tuple[int, EvictingCache]]:
        """The cells that have not stopped."""
        return ((cell, self.caches[cell]) for cell in cells if cell not in self._closed)

    @property
    def positions(self) -> list[int]:
        """The position of the next token of every cell."""
        return [cache.position for cache in self.caches] + [0] * (self.cells - self.num_active)

    @property
    def peak_bytes(self) -> list[int]:
        """Most bytes of the pairs, positions and state of each cell between two forward passes."""
        return [cache.peak_bytes for cache in self.caches]


def _key(cache: EvictingCache, new: int, in_place: bool) -> Hashable:
    """What caches must have in common to lie in one store and to be evicted from together."""
    policy, stepping = cache.stepping.policy, cache.stepping
    if cache.kernels == "triton" and new == cache.every == 1:
        return policy.layout
    key = in_place, policy.layout, stepping.accumulates
    if in_place:
        return *key, policy.sinks, policy.pool
    reads = stepping.score.inputs.window
    return *key, cache.every, cache.pending, policy.slot_order, policy.positions, reads
