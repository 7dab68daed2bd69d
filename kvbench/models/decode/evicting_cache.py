"""Caches that are cut as they grow: block by block while a prompt is read, or every few tokens while an answer is.

A cut comes right after the attention of the tokens that were read last, layer by layer: later layers read on with what
this one put out, later tokens see what is left of it. Positions are never renumbered, unless the policy says
`positions=cache`: then what is left is read as if it stood at 0, 1, ... and new tokens stand behind it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

import torch
from jaxtyping import Float
from torch import Tensor

from kvbench.cache.attention import Rule, fused, over_layer
from kvbench.cache.kernels.choice import Kernels
from kvbench.cache.kv_cache import KVCache, LayerCache, Window, joined
from kvbench.eviction.incremental import IncrementalEviction
from kvbench.models.prefill import within
from kvbench.models.rope.re_rotation import ROTATED, KeyReRotation
from kvbench.support.errors import UserError

Rows = Float[Tensor, "heads new head_dim"]
Pairs = Float[Tensor, "kv_heads new head_dim"]


@dataclass
class EvictingCache:
    """A cache that is cut as soon as `every` or more tokens were read since the last cut; None: it never is.

    `cache` is where it starts, cut before and with what `stepping` remembers of it; None is an empty one. Local layers
    are not cut: they hold what their sliding window sees, which hides nothing in a sequence of `max_length` tokens that
    is no longer than the window. re_rotation: by the model's rotation, where positions are those of the cache. kernels:
    what attends with a single row, and sums over the rows that vote. cells: of how many it is, abreast as
    `kvbench.models.decode.batched_scores` says.

    peak_bytes: the most that was held between two forward passes. read_bytes: what would be held of the tokens read
    here had nothing been cut.
    """

    stepping: IncrementalEviction
    every: int | None
    cache: KVCache | None = None
    max_length: int | None = None
    re_rotation: KeyReRotation | None = None
    kernels: Kernels = "torch"
    num_tokens: int = 0
    unread: int = 0
    cells: int = 1
    peak_bytes: int = 0
    read_bytes: int = 0
    _layers: dict[int, LayerCache] = field(default_factory=dict)
    _rows: dict[int, list[Window]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        renumbers = self.stepping.eviction.policy.positions == "cache"
        assert renumbers == (self.re_rotation is not None), "positions=cache goes with the model's re_rotation"
        if self.cache is not None:
            self.num_tokens = self.cache.num_tokens
            self._layers = {layer.index: layer for layer in self.cache.layers}
            self.peak_bytes, self.cache = self.cache.bytes_allocated, None

    def attend(self, layer: int, queries: Rows, keys: Pairs, values: Pairs, rule: Rule) -> Rows:
        """Append the new pairs, attend to all that is there, and cut if it is time."""
        rule = within(rule, self.max_length)
        if layer not in self._layers:
            begun = self.stepping.start(layer, queries.shape[0], keys.shape[0], keys)
            if self.re_rotation is not None:
                begun = replace(begun, state={**begun.state, ROTATED: begun.positions.float()})
            self._layers[layer] = replace(begun, sliding_window=rule.sliding_window)
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
            if self.unread + keys.shape[1] >= self.every:
                left = self.stepping.step(shown, replace(joined(records), kernels=self.kernels)).layer
                grown = left if self.re_rotation is None else self.re_rotation.stored(grown, left)
                records.clear()
        self._layers[layer] = grown
        return rows.outputs

    def _attend_locally(
        self, layer: int, queries: Rows, keys: Pairs, values: Pairs, rule: Rule, sliding_window: int
    ) -> Rows:
        held = self._layers[layer].keys.nbytes + self._layers[layer].values.nbytes
        grown = self._layers[layer].append(keys, values, self.num_tokens)
        kept = torch.ones(grown.cache_heads, grown.lengths[0], dtype=torch.bool)
        kept[:, : max(0, grown.lengths[0] - sliding_window + 1)] = False
        left = self._layers[layer] = grown.select(kept)
        self.read_bytes += left.keys.nbytes + left.values.nbytes - held
        return fused(queries, *grown.dense, rule)

    def finish(self, new: int) -> None:
        """Count tokens as read once all layers have seen them."""
        self.num_tokens += new
        self.unread += new
        if self.every is not None and self.unread >= self.every:
            self.unread = 0
        self.peak_bytes = max(self.peak_bytes, self.freeze().bytes_allocated)

    def freeze(self) -> KVCache:
        """What is there now."""
        layers = tuple(self._layers[layer] for layer in sorted(self._layers))
        return KVCache(layers, self.num_tokens, None if self.re_rotation is None else self.position)

    @property
    def position(self) -> int:
        """The position of the next token."""
        if self.re_rotation is None:
            return self.num_tokens
        return next(iter(self._layers.values())).lengths[0] if self._layers else 0


class EvictingBatch:
    """The reader of a batch of cells whose caches are cut as they grow: in the place of a `DecodeBatch`.

    Every cache is attended to by itself, the model's own matrices are shared; missing cells are empty, as in a tile.
    Caches of cells that stand abreast are never closed for one of them.
    """

    def __init__(self, growing: Sequence[EvictingCache], cells: int, room: int) -> None:
        self.cells, self.real, self.room = cells, sum(one.cells for one in growing), room
        assert 0 < self.real <= cells and len({one.num_tokens for one in growing}) == 1
        self.num_tokens, self.used = growing[0].num_tokens, 0
        self.failures: dict[int, str] = {}
        self._growing, self._closed = growing, set[int]()

    def attend(
        self,
        layer: int,
        queries: Float[Tensor, "cells heads new head_dim"],
        keys: Float[Tensor, "cells kv_heads new head_dim"],
        values: Float[Tensor, "cells kv_heads new head_dim"],
        rule: Rule,
    ) -> Float[Tensor, "cells heads new head_dim"]:
        """Let each open cell read its own new tokens. One that cannot be cut is closed, and `failures` says why."""
        outputs = torch.zeros_like(queries)
        for cell, growing in self._open():
            own, its = slice(cell, cell + growing.cells), rule
            if rule.sinks is not None and growing.cells > 1:
                its = replace(rule, sinks=rule.sinks.repeat(growing.cells))
            new = [rows[own].flatten(0, 1) for rows in (queries, keys, values)]
            try:
                outputs[own] = growing.attend(layer, *new, its).view_as(outputs[own])
            except ValueError as error:
                self.failures[cell] = str(error)
                self.close(cell)
        return outputs

    def check(self) -> None:
        """Raise ValueError where a cell could not be cut: for readers that need all of them."""
        for failure in self.failures.values():
            raise UserError(failure)

    def close(self, cell: int) -> None:
        """Leave a cell as it is from now on: what it holds must not depend on how long others go on."""
        self._closed.add(cell)

    def finish(self, new: int) -> None:
        """Count tokens as read once all layers have seen them."""
        self.used += new
        for _, growing in self._open():
            growing.finish(new)

    def _open(self) -> list[tuple[int, EvictingCache]]:
        firsts = accumulate((growing.cells for growing in self._growing), initial=0)
        opened = zip(firsts, self._growing, strict=False)
        return [(cell, growing) for cell, growing in opened if cell not in self._closed]

    @property
    def positions(self) -> list[int]:
        """The position of the next token of every cell."""
        real = [growing.position for growing in self._growing for _ in range(growing.cells)]
        return real + [0] * (self.cells - self.real)

    @property
    def peak_bytes(self) -> list[int]:
        """Most bytes that each cell's pairs and what goes with them took between two forward passes."""
        return [growing.peak_bytes // growing.cells for growing in self._growing for _ in range(growing.cells)]
