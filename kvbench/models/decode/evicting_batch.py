"""Caches that are evicted from as they grow: block by block while a prompt is read, or every few tokens of an answer.

A layer evicts right after the attention of the newest tokens, whose output is not affected. Positions change only with
`policy.positions=cache`: kept pairs are then numbered 0, 1, ... again and new tokens follow them.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

import torch
from torch import Tensor

from kvbench.cache.attention import Rule, fused, over_layer
from kvbench.cache.kernels.choice import Kernels
from kvbench.cache.kv_cache import POSITION, ROTATED, KVCache, LayerCache, Window, joined
from kvbench.cache.recurrent import RecurrentState, join_states
from kvbench.eviction.incremental import IncrementalEviction
from kvbench.models.decode.batch import CellPairs, CellRows, DecodeBatch, Heads, KVHeads
from kvbench.models.decode.slots import SlotLayer, capacity_of, slots_key
from kvbench.models.rope import KeyReRotation


@dataclass
class EvictingCache:
    """A cache that evicts as soon as `every` or more tokens were read since its last eviction; None: never.

    cache: the initial cache, with the state that `stepping` added (`IncrementalEviction.remember`); None: empty. Local
    layers hold the tokens in their sliding window (all tokens if no sequence of `max_length` is longer). re_rotation:
    for `positions=cache`, how keys rotate. kernels: of attention with a single row and of sums over the window. cells:
    how many cells share the cache, see `kvbench.models.decode.batched_scores`.
    num_tokens: tokens read so far. pending: tokens read since the last eviction. peak_bytes: the most bytes held
    between two forward passes. read_bytes: bytes of the tokens read here if nothing were evicted. recurrent: the state
    of layers without keys, of each cell.
    """

    stepping: IncrementalEviction
    every: int | None
    cache: KVCache | None = None
    max_length: int | None = None
    re_rotation: KeyReRotation | None = None
    kernels: Kernels = "torch"
    num_tokens: int = 0
    pending: int = 0
    cells: int = 1
    peak_bytes: int = 0
    read_bytes: int = 0
    recurrent: RecurrentState | None = None
    _layers: dict[int, LayerCache] = field(default_factory=dict)
    _rows: dict[int, list[Window]] = field(default_factory=dict)
    _taken: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        renumbered = self.stepping.eviction.policy.positions == "cache"
        assert renumbered == (self.re_rotation is not None), "positions=cache goes with the model's re_rotation"
        if self.cache is not None:
            self.num_tokens = self.cache.num_tokens
            self._layers = {layer.index: layer for layer in self.cache.layers}
            self.recurrent = self.cache.recurrent
            if self.recurrent is not None and self.recurrent.cells != self.cells:
                self.recurrent = self.recurrent.of_cells([0] * self.cells)
            self.peak_bytes, self.cache = self.cache.bytes_allocated, None

    def attend(self, layer: int, queries: CellRows, keys: CellPairs, values: CellPairs, rule: Rule) -> CellRows:
        """Append the new pairs, attend to all pairs, and evict if `every` tokens were read."""
        rule = rule.within(self.max_length)
        if layer not in self._layers:
            empty = self.stepping.start(layer, queries.shape[0], keys.shape[0], keys)
            if self.re_rotation is not None:
                empty = replace(empty, state={**empty.state, ROTATED: empty.positions.float()})
            self._layers[layer] = replace(empty, sliding_window=rule.sliding_window)
        if rule.sliding_window is not None:
            return self._attend_locally(layer, queries, keys, values, rule, rule.sliding_window)
        self.read_bytes += keys.nbytes + values.nbytes
        if self.re_rotation is None:
            grown = shown = self._layers[layer].append(keys, values, self.num_tokens)
        else:
            grown = self.re_rotation.append(self._layers[layer], keys, values, self.num_tokens)
            shown = self.re_rotation.show(grown)
        rows = over_layer(queries, shown, rule, self.kernels)
        if self.every is not None:
            records = self._rows.setdefault(layer, [])
            records.append(rows)
            if self.pending + keys.shape[1] >= self.every:
                left = self.stepping.step(shown, replace(joined(records), kernels=self.kernels)).layer
                grown = left if self.re_rotation is None else self.re_rotation.stored(grown, left)
                records.clear()
        self._layers[layer] = grown
        return rows.outputs

    def _attend_locally(
        self, layer: int, queries: CellRows, keys: CellPairs, values: CellPairs, rule: Rule, sliding_window: int
    ) -> CellRows:
        held = self._layers[layer].keys.nbytes + self._layers[layer].values.nbytes
        grown = self._layers[layer].append(keys, values, self.num_tokens)
        kept = torch.ones(grown.cache_heads, grown.lengths[0], dtype=torch.bool)
        kept[:, : max(0, grown.lengths[0] - sliding_window + 1)] = False
        left = self._layers[layer] = grown.select(kept)
        self.read_bytes += left.keys.nbytes + left.values.nbytes - held
        return fused(queries, *grown.dense, rule)

    def finish(self, new: int, elsewhere: int = 0) -> None:
        """Count tokens as read once all layers have seen them. elsewhere: bytes of the layers taken by `take`."""
        self.num_tokens += new
        self.pending += new
        if self.every is not None and self.pending >= self.every:
            self.pending = 0
        self.peak_bytes = max(self.peak_bytes, self._held().bytes_allocated + elsewhere)

    @property
    def slots_key(self) -> Hashable | None:
        """`slots_key` of caches that evict after every token from heads that hold what they may; None for others."""
        full = all(
            length <= capacity_of(self.stepping, layer.index, head)
            for layer in self._layers.values()
            for head, length in enumerate(layer.lengths)
            if layer.evictable
        )
        return slots_key(self.stepping, self.kernels) if self.every == 1 and self.cells == 1 and full else None

    def take(self, layer: int, heads: int, keys: CellPairs) -> LayerCache:
        """A layer without sliding window, to be held elsewhere until `give`; `keys` are like those of its new pairs."""
        self._taken.add(layer)
        return self._layers.pop(layer, None) or self.stepping.start(layer, heads, keys.shape[0], keys)

    def give(self, layer: LayerCache) -> None:
        """Put a layer back."""
        self._layers[layer.index] = layer
        self._taken.discard(layer.index)

    def freeze(self) -> KVCache:
        """The current cache, once a batch that read it is settled."""
        assert not self._taken, "layers of this cache are held by a batch: settle it first"
        return self._held()

    def _held(self) -> KVCache:
        layers = tuple(self._layers[layer] for layer in sorted(self._layers))
        return KVCache(layers, self.num_tokens, None if self.re_rotation is None else self.position, self.recurrent)

    @property
    def position(self) -> int:
        """The position of the next token."""
        if self.re_rotation is None:
            return self.num_tokens
        return next(iter(self._layers.values())).lengths[0] if self._layers else 0


class EvictingBatch(DecodeBatch):
    """Cells whose caches are evicted from as they grow.

    While single tokens are read, cells of equal `slots_key` are evicted from together (`SlotLayer`); attention and
    eviction of the others run separately for each cache. A cache of several cells is never closed for one of them.
    """

    def __init__(self, caches: Sequence[EvictingCache], cells: int, max_new_tokens: int) -> None:
        assert len({cache.num_tokens for cache in caches}) == 1
        assert not any(cache._taken for cache in caches), "settle the batch that read these caches first"
        recurrent = join_states([cache.recurrent for cache in caches])
        super().__init__(cells, sum(cache.cells for cache in caches), caches[0].num_tokens, max_new_tokens, recurrent)
        self.caches, self._closed = caches, set[int]()
        self._firsts = list(accumulate((cache.cells for cache in caches), initial=0))[:-1]
        self._groups: list[list[int]] = []
        self._slots: dict[tuple[int, int], SlotLayer] = {}
        self._fresh: dict[torch.device, Tensor] = {}

    def _attend(self, layer: int, queries: Heads, keys: KVHeads, values: KVHeads, rule: Rule) -> Heads:
        """Let each open cell read its own new tokens. A cell that cannot evict is closed; `failures` says why."""
        together = queries.shape[2] == 1
        if not together:
            self.settle()
        elif not self._slots and not self._groups:
            self._groups = self._alike()
        local = rule.within(self.caches[0].max_length).sliding_window is not None
        groups = [] if local or not together else self._groups
        if groups and len(groups[0]) == len(queries):
            return self._attend_together(0, layer, queries, keys, values, rule)
        outputs = torch.zeros_like(queries)
        for number, group in enumerate(groups):
            rows = slice(group[0], group[-1] + 1) if group[-1] - group[0] == len(group) - 1 else group
            outputs[rows] = self._attend_together(number, layer, queries[rows], keys[rows], values[rows], rule)
        shared = {cell for group in groups for cell in group}
        for cell, cache in self._open():
            if cell in shared:
                continue
            cells, cell_rule = slice(cell, cell + cache.cells), rule
            if rule.sinks is not None and cache.cells > 1:
                cell_rule = replace(rule, sinks=rule.sinks.repeat(cache.cells))
            new = [rows[cells].flatten(0, 1) for rows in (queries, keys, values)]
            try:
                outputs[cells] = cache.attend(layer, *new, cell_rule).view_as(outputs[cells])
            except ValueError as error:
                self.failures[cell] = str(error)
                self.close(cell)
        return outputs

    def _alike(self) -> list[list[int]]:
        """The cells of each `slots_key`; their layers are taken one by one, as tokens reach them."""
        groups: dict[Hashable, list[int]] = {}
        for cell, cache in self._open():
            if (key := cache.slots_key) is not None:
                groups.setdefault(key, []).append(cell)
        return list(groups.values())

    def _attend_together(
        self, group: int, layer: int, queries: Heads, keys: KVHeads, values: KVHeads, rule: Rule
    ) -> Heads:
        """`_attend` for the cells of a group."""
        caches = [self._cache(cell) for cell in self._groups[group]]
        if (group, layer) not in self._slots:
            like = [cache.take(layer, queries.shape[1], new) for cache, new in zip(caches, keys, strict=True)]
            steppings = [cache.stepping for cache in caches]
            room = self.max_new_tokens - self.num_new_tokens
            self._slots[group, layer] = SlotLayer(like, steppings, room, caches[0].kernels)
        for cell, cache in zip(self._groups[group], caches, strict=True):
            if cell not in self._closed:
                cache.read_bytes += (keys.nbytes + values.nbytes) // len(keys)
        rule, token = rule.within(caches[0].max_length), self.num_tokens + self.num_new_tokens
        if keys.device not in self._fresh:
            numbers = torch.tensor([token, 0], dtype=POSITION).to(keys.device, non_blocking=True)
            self._fresh[keys.device] = numbers[:, None, None]
        return self._slots[group, layer].attend(queries, keys, values, rule, token, self._fresh[keys.device])

    def settle(self) -> None:
        """Give every cache its layers back."""
        for (group, _), slots in self._slots.items():
            for place, cell in enumerate(self._groups[group]):
                self._cache(cell).give(slots.layer_of(place))
        self._slots, self._groups = {}, []

    def _cache(self, cell: int) -> EvictingCache:
        return self.caches[self._firsts.index(cell)]

    def close(self, cell: int) -> None:
        """Stop reading in a cell: its cache must not depend on how long the answers of others are."""
        self._closed.add(cell)

    def finish(self, new: int) -> None:
        """Count tokens as read once all layers have seen them."""
        super().finish(new)
        held: dict[int, int] = {}
        for (group, _), slots in self._slots.items():
            cells = self._groups[group]
            for cell, size in zip(cells, slots.bytes_held, strict=True):
                held[cell] = held.get(cell, 0) + size
        self._check_scores()
        self._fresh.clear()
        for cell, cache in self._open():
            if self.recurrent is not None:
                cache.recurrent = self.recurrent.part(cell, cell + cache.cells)
            cache.finish(new, held.get(cell, 0))

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
                if wrong and cell not in self._closed:
                    score = self._cache(cell).stepping.eviction.score.name
                    self.failures[cell] = f"score {score} of layer {layer} is not finite: NaN or inf"
                    self.close(cell)
            slots.broken = None

    def _open(self) -> list[tuple[int, EvictingCache]]:
        """The caches of open cells, by their first cell."""
        open_cells = zip(self._firsts, self.caches, strict=True)
        return [(cell, cache) for cell, cache in open_cells if cell not in self._closed]

    @property
    def positions(self) -> list[int]:
        """The position of the next token of every cell."""
        active = [cache.position for cache in self.caches for _ in range(cache.cells)]
        return active + [0] * (self.cells - self.num_active)

    @property
    def peak_bytes(self) -> list[int]:
        """Most bytes of the pairs, positions and state of each cell between two forward passes."""
        return [cache.peak_bytes // cache.cells for cache in self.caches for _ in range(cache.cells)]
