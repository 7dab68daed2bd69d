"""Cells whose caches are evicted from as they grow: block by block while a prompt is read, or every few tokens of an
answer. Each evicts by itself (`EvictingCache`); those that the kernels can evict from together lie in one store.
"""

import sys
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from kvbench.cache.attention import AttentionParams
from kvbench.cache.kernels.choice import kernel_module, packages
from kvbench.cache.kv_cache import POSITION
from kvbench.cache.recurrent import join_states
from kvbench.eviction.scores.score import AttentionCall
from kvbench.models.decode.batch import DecodeBatch, Heads, KVHeads
from kvbench.models.decode.evicting_cache import EvictingCache
from kvbench.models.decode.local_layer import LocalLayer
from kvbench.support.errors import UserError


@dataclass(frozen=True)
class EvictionClock:
    """Common schedule of the cells of a store: they evict every so many tokens (None: never), of which `pending` were
    read, and read at most `most_tokens` more.
    """

    every: int | None
    pending: int
    most_tokens: int


class EvictingBatch(DecodeBatch):
    """Cells of one prompt, each with its own cache. Those of an equal `_key` evict by the same kernels."""

    uncaptured = "the host counts what cells hold that evict while they answer"

    def __init__(self, caches: Sequence[EvictingCache], cells: int, max_new_tokens: int) -> None:
        assert len({cache.num_tokens for cache in caches}) == 1
        assert not any(cache._lent for cache in caches), "settle the batch that read these caches first"
        recurrent = join_states([cache.recurrent for cache in caches])
        super().__init__(cells, len(caches), caches[0].num_tokens, max_new_tokens, recurrent)
        self.caches, self._closed, self._new = caches, set[int](), 0
        self._alone: list[int] = []
        self._call: AttentionCall | None = None
        self._groups: list[list[int]] = []
        self._slots: dict[tuple[int, int], Any] = {}
        self._local: dict[int, LocalLayer] = {}
        self._newest: dict[torch.device, Tensor] = {}
        self._rows: dict[tuple[int, torch.device], Tensor] = {}

    def _attend(self, layer: int, queries: Heads, keys: KVHeads, values: KVHeads, rule: AttentionParams) -> Heads:
        """Return a cell that cannot evict is closed; `failures` says why."""
        call, self._call = self._call, None
        if queries.shape[2] != self._new:
            self.return_layers()
            self._group(queries.shape[2])
        rule = rule.within(self.caches[0].max_length)
        if rule.sliding_window is not None:
            return self._attend_locally(layer, queries, keys, values, rule)
        for _, cache in self._open(range(self.num_active)):
            cache.full_bytes += (keys.nbytes + values.nbytes) // len(keys)
        if self._groups and len(self._groups[0]) == self.num_active:
            return self._attend_together(0, layer, queries, keys, values, rule)
        outputs = torch.zeros_like(queries)
        for cell, cache in self._open(self._alone):
            try:
                own = call and call._replace(hidden=call.hidden[cell : cell + 1])
                outputs[cell] = cache.attend(layer, queries[cell], keys[cell], values[cell], rule, own)
            except UserError as error:
                self._fail(cell, str(error))
        for number in range(len(self._groups)):
            rows = self._rows_of(number, queries.device)
            own, new_keys, new_values = (part.index_select(0, rows) for part in (queries, keys, values))
            outputs.index_copy_(0, rows, self._attend_together(number, layer, own, new_keys, new_values, rule))
        return outputs

    @property
    def reads_hidden(self) -> bool:
        """Whether `receive` is to get the hidden states that attention layers read."""
        return any(cache.evictor.reads_hidden for cache in self.caches)

    def receive(self, call: AttentionCall) -> None:
        """Take the hidden states of all cells that the attention of a layer is about to read."""
        self._call = call

    def _group(self, new: int) -> None:
        """Find the cells that read `new` tokens alone, and the cells of each key."""
        groups: dict[Hashable, list[int]] = {}
        self._new, self._alone, self._rows = new, [], {}
        for cell, cache in self._open(range(self.num_active)):
            fast = cache.kernels in packages() and new == 1 and not cache.divides
            if fast and kernel_module("evicting_slots", cache.kernels).can_evict(cache.evictor, cache.every):
                groups.setdefault(_key(cache), []).append(cell)
            else:
                self._alone.append(cell)
        self._groups = list(groups.values())

    def _rows_of(self, group: int, device: torch.device) -> Int[Tensor, "cells"]:
        """Return the rows of the cells of a group; the host does not wait for them."""
        if (group, device) not in self._rows:
            self._rows[group, device] = torch.tensor(self._groups[group]).to(device, non_blocking=True)
        return self._rows[group, device]

    def _attend_together(
        self, group: int, layer: int, queries: Heads, keys: KVHeads, values: KVHeads, rule: AttentionParams
    ) -> Heads:
        """`_attend` for the cells of a group."""
        caches = [self.caches[cell] for cell in self._groups[group]]
        if (group, layer) not in self._slots:
            like = [
                cache.lend_layer(layer, queries.shape[1], new, None) for cache, new in zip(caches, keys, strict=True)
            ]
            reading = EvictionClock(caches[0].every, caches[0].pending, self.max_new_tokens - self.num_new_tokens)
            rows = [cache.pending_rows(layer) for cache in caches]
            self._slots[group, layer] = kernel_module("evicting_slots", caches[0].kernels).Slots(
                like, caches, reading, rows
            )
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

    def _attend_locally(
        self, layer: int, queries: Heads, keys: KVHeads, values: KVHeads, rule: AttentionParams
    ) -> Heads:
        """`_attend` for a layer that the model limits by a sliding window."""
        if layer not in self._local:
            borrowed = [
                cache.lend_layer(layer, queries.shape[1], new, rule.sliding_window)
                for cache, new in zip(self.caches, keys, strict=True)
            ]
            self._local[layer] = LocalLayer(borrowed, self.num_tokens + self.num_new_tokens)
        outputs = self._local[layer].attend(queries, keys, values, rule)
        for _, cache in self._open(range(self.num_active)):
            cache.full_bytes += self._local[layer].bytes_read
        return outputs

    def return_layers(self) -> None:
        """Give every cache its layers back."""
        for (group, _), slots in self._slots.items():
            for place, cell in enumerate(self._groups[group]):
                self.caches[cell].return_layer(slots.layer_of(place), slots.rows_of(place))
        for local in self._local.values():
            for cell, cache in enumerate(self.caches):
                cache.return_layer(local.layer_of(cell))
        self._slots, self._local, self._new = {}, {}, 0

    def close(self, cell: int) -> None:
        """Stop counting a cell: what its row says of memory must not depend on how long the answers of others are."""
        self._closed.add(cell)

    def finish(self, new: int) -> None:
        """Count tokens as read once all layers have seen them."""
        super().finish(new)
        held = [0] * self.num_active
        for (group, _), slots in self._slots.items():
            for cell, size in zip(self._groups[group], slots.bytes_held, strict=True):
                held[cell] += size
        for local in self._local.values():
            held = [size + more for size, more in zip(held, local.bytes_held, strict=True)]
        self._check_scores()
        self._newest.clear()
        for cell, cache in self._open(range(self.num_active)):
            if self.recurrent is not None:
                cache.recurrent = self.recurrent.part(cell, cell + 1)
            cache.finish(new, held[cell])

    def _check_scores(self) -> None:
        """Close cells with a score that is NaN or inf. The host waits once for the device."""
        scored, flags = list[tuple[int, int]](), list[Tensor]()
        for (group, layer), slots in self._slots.items():
            if slots.broken is not None:
                scored += [(self._groups[group][place], layer) for place, _ in slots.layout.owners]
                flags.append(~slots.broken)
                slots.broken = None
        for cell, cache in self._open(self._alone):
            scored += [(cell, layer) for layer, parts in cache.finite.items() for _ in parts]
            flags += [part[None] for parts in cache.finite.values() for part in parts]
            cache.finite.clear()
        moved = [part.to(flags[0].device, non_blocking=True) for part in flags]  # layers may lie on several GPUs
        finite = torch.cat(moved).tolist() if moved else []
        for cell, layer in (place for place, is_finite in zip(scored, finite, strict=True) if not is_finite):
            score = self.caches[cell].evictor.score.name
            self._fail(cell, f"score {score} of layer {layer} is not finite: NaN or inf")

    def _fail(self, cell: int, reason: str) -> None:
        if cell not in self._closed:
            self.failures[cell] = reason
            self.close(cell)

    def _open(self, cells: Sequence[int]) -> Iterator[tuple[int, EvictingCache]]:
        """Return the cells that have not stopped."""
        return ((cell, self.caches[cell]) for cell in cells if cell not in self._closed)

    @property
    def positions(self) -> list[int]:
        """The position of the next token of every cell."""
        return [cache.position for cache in self.caches] + [0] * (self.cells - self.num_active)

    def evictions(self, cell: int) -> int:
        """As in `DecodeBatch`."""
        return self.caches[cell].evictions

    @property
    def peak_bytes(self) -> list[int]:
        """Most bytes of the pairs, positions and state of each cell between two forward passes."""
        return [cache.peak_bytes for cache in self.caches]


def _key(cache: EvictingCache) -> Hashable:
    """Return what caches must have in common to lie in one store and to be evicted from together."""
    policy = cache.evictor.policy
    if cache.every in (None, 1):
        return policy.layout, cache.every
    return policy.layout, cache.every, cache.pending, cache.evictor.score.inputs.window and policy.rows(sys.maxsize)
