"""Cells that evict while they decode, a token at a time: those that the kernels can evict from together lie in one
store.
"""

import sys
from collections.abc import Hashable, Iterator, Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from kvbench.cache.attention import AttentionParams
from kvbench.cache.kv_cache import POSITION
from kvbench.eviction.scores.score import AttentionCall
from kvbench.extras.triton.evicting_slots import EvictionClock, Slots, can_evict
from kvbench.models.decode.batch import Heads, KVHeads
from kvbench.models.decode.evicting_batch import EvictingBatch, Finite
from kvbench.models.decode.evicting_cache import EvictingCache


class SlotsBatch(EvictingBatch):
    """An `EvictingBatch` whose cells of an equal `_key` read and evict by the same kernels; others by themselves."""

    def __init__(self, caches: Sequence[EvictingCache], cells: int, max_new_tokens: int) -> None:
        super().__init__(caches, cells, max_new_tokens)
        self._new = 0
        self._groups: list[list[int]] = []
        self._slots: dict[tuple[int, int], Slots] = {}
        self._newest: dict[torch.device, Tensor] = {}
        self._rows: dict[tuple[int, torch.device], Tensor] = {}

    def _attend(self, layer: int, queries: Heads, keys: KVHeads, values: KVHeads, rule: AttentionParams) -> Heads:
        if queries.shape[2] != self._new:
            self.return_layers()
            self._group(queries.shape[2])
        return super()._attend(layer, queries, keys, values, rule)

    def _attend_and_evict(
        self,
        layer: int,
        queries: Heads,
        keys: KVHeads,
        values: KVHeads,
        rule: AttentionParams,
        call: AttentionCall | None,
    ) -> Heads:
        if self._groups and len(self._groups[0]) == self.num_active:
            return self._attend_together(0, layer, queries, keys, values, rule)
        outputs = super()._attend_and_evict(layer, queries, keys, values, rule, call)
        for number in range(len(self._groups)):
            rows = self._rows_of(number, queries.device)
            own, new_keys, new_values = (part.index_select(0, rows) for part in (queries, keys, values))
            outputs.index_copy_(0, rows, self._attend_together(number, layer, own, new_keys, new_values, rule))
        return outputs

    def _group(self, new: int) -> None:
        """Find the cells that read `new` tokens alone, and the cells of each key."""
        groups: dict[Hashable, list[int]] = {}
        alone: list[int] = []
        for cell, cache in self._open(range(self.num_active)):
            if new == 1 and not cache.divides and can_evict(cache.evictor, cache.every):
                groups.setdefault(_key(cache), []).append(cell)
            else:
                alone.append(cell)
        self._new, self._alone, self._groups, self._rows = new, alone, list(groups.values()), {}

    def _rows_of(self, group: int, device: torch.device) -> Int[Tensor, "cells"]:
        """Return the rows of the cells of a group; the host does not wait for them."""
        if (group, device) not in self._rows:
            self._rows[group, device] = torch.tensor(self._groups[group]).to(device, non_blocking=True)
        return self._rows[group, device]

    def _attend_together(
        self, group: int, layer: int, queries: Heads, keys: KVHeads, values: KVHeads, rule: AttentionParams
    ) -> Heads:
        """`_attend_and_evict` for the cells of a group."""
        caches = [self.caches[cell] for cell in self._groups[group]]
        if (group, layer) not in self._slots:
            like = [
                cache.lend_layer(layer, queries.shape[1], new, None) for cache, new in zip(caches, keys, strict=True)
            ]
            reading = EvictionClock(caches[0].every, caches[0].pending, self.max_new_tokens - self.num_new_tokens)
            rows = [cache.pending_rows(layer) for cache in caches]
            self._slots[group, layer] = Slots(like, caches, reading, rows)
        slots = self._slots[group, layer]
        if keys.device not in self._newest:
            position = torch.tensor([self.num_tokens + self.num_new_tokens], dtype=POSITION)
            self._newest[keys.device] = position.to(keys.device, non_blocking=True)
        outputs = slots.attend(queries, keys, values, rule, self._newest[keys.device])
        for place, reason in slots.failures.items():
            self._fail(self._groups[group][place], reason)
        for place in slots.drops:
            caches[place].drops = True
        return outputs

    def return_layers(self) -> None:
        for (group, _), slots in self._slots.items():
            for place, cell in enumerate(self._groups[group]):
                self.caches[cell].return_layer(slots.layer_of(place), slots.rows_of(place))
        self._slots, self._new = {}, 0
        super().return_layers()

    def finish(self, new: int) -> None:
        super().finish(new)
        self._newest.clear()

    def _lent_bytes(self) -> list[int]:
        lent = super()._lent_bytes()
        for (group, _), slots in self._slots.items():
            for cell, size in zip(self._groups[group], slots.bytes_held, strict=True):
                lent[cell] += size
        return lent

    def _finite(self) -> Iterator[Finite]:
        for (group, layer), slots in self._slots.items():
            if slots.broken is not None:
                yield [(self._groups[group][place], layer) for place, _ in slots.layout.owners], ~slots.broken
                slots.broken = None
        yield from super()._finite()


def _key(cache: EvictingCache) -> Hashable:
    """Return what caches must have in common to lie in one store and to be evicted from together."""
    policy = cache.evictor.policy
    if cache.every in (None, 1):
        return policy.layout, cache.every
    return policy.layout, cache.every, cache.pending, cache.evictor.score.inputs.window and policy.rows(sys.maxsize)
