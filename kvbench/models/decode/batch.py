"""Decode batches: evicted caches (cells) that are decoded together, of one prompt except in a `RaggedBatch`.

`RaggedBatch` below copies the kept pairs of every cell, `EvictingBatch` evicts while it decodes; holders of extras have
batches of their own. A batch has a fixed number of cells, so that the model's matrices have one shape however many
cells are active.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import mul
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kvbench.cache.attention import AttentionParams, attend_segments, hidden
from kvbench.cache.kv_cache import CutCache, CutLayer, KVCache, LayerCache
from kvbench.cache.recurrent import RecurrentState, join_states
from kvbench.support.errors import UserError

Heads = Float[Tensor, "cells heads new head_dim"]
KVHeads = Float[Tensor, "cells kv_heads new head_dim"]
CellRows = Float[Tensor, "heads new head_dim"]
CellPairs = Float[Tensor, "kv_heads new head_dim"]


class BytesRead(NamedTuple):
    """Bytes that attention reads for a token, in all layers: keys and values, and what a reader chooses them by."""

    pairs: float
    index: float


class DecodeBatch(ABC):
    """The KV caches of several cells (policy x score x budget), which decode as one batch.

    cells: size of the batch, whose first `num_active` cells are used. num_tokens: tokens of the prompt, kept or
    evicted; of several prompts, of the longest. num_new_tokens: tokens read since, at most `max_new_tokens`. recurrent:
    the state of layers without keys, a copy for each active cell. failures: the error message of each cell that failed.
    order: the cell of each active row, by its place when the batch was made. uncaptured: why no CUDA graph can have its
    steps; None: one can. stepped: how the steps of answers were launched, if not by a graph of several prompts.
    """

    uncaptured: str | None = "each cell reads by itself"
    stepped: str | None = None

    def __init__(
        self,
        cells: int,
        num_active: int,
        num_tokens: int,
        max_new_tokens: int,
        recurrent: RecurrentState | None = None,
    ) -> None:
        assert 0 < num_active <= cells
        self.recurrent = recurrent
        self.cells, self.num_active = cells, num_active
        self.num_tokens, self.num_new_tokens, self.max_new_tokens = num_tokens, 0, max_new_tokens
        self.failures: dict[int, str] = {}
        self.order = list(range(num_active))

    def attend(self, layer: int, queries: Heads, keys: KVHeads, values: KVHeads, rule: AttentionParams) -> Heads:
        """Append the new tokens; every row attends to the pairs of its cell and, causally, to the tokens read since.

        The outputs of rows beyond the active cells are zero.
        """
        active = slice(self.num_active)
        outputs = self._attend(layer, queries[active], keys[active], values[active], rule)
        if len(outputs) == len(queries):
            return outputs
        padded = torch.zeros_like(queries)
        padded[active] = outputs
        return padded

    @abstractmethod
    def _attend(self, layer: int, queries: Heads, keys: KVHeads, values: KVHeads, rule: AttentionParams) -> Heads:
        """`attend` for the active cells."""

    def finish(self, new: int) -> None:
        """Count tokens as read, after all layers have read them."""
        self.num_new_tokens += new

    def close(self, cell: int) -> None:
        """Note that a cell has stopped. By default nothing changes, since its memory is preallocated."""
        return

    def narrow(self, cells: Sequence[int]) -> None:
        """Only these cells of `order` will read more tokens: a batch may leave out the others from now on."""
        return

    def check(self) -> None:
        """Raise UserError if a cell failed, for callers that need all of them."""
        for failure in self.failures.values():
            raise UserError(failure)

    @property
    def positions(self) -> list[int]:
        """The position of the next token of every cell."""
        return [self.num_tokens + self.num_new_tokens] * self.cells

    def evictions(self, cell: int) -> int:
        """After how many passes a cell has lost pairs; by default none ever does."""
        return 0

    @property
    @abstractmethod
    def peak_bytes(self) -> list[int]:
        """Bytes that each active cell occupies at most while it decodes, preallocated room for new tokens included."""

    def bytes_read(self, cell: int, first: int, tokens: int) -> BytesRead | None:
        """Return the mean bytes that `tokens` tokens of a cell read, after `first` others beyond the prompt. None: not
        known, or no tokens.
        """
        return None


@dataclass(frozen=True)
class EqualLengthSegments:
    """Segments start to stop of the ordered layer: prefixes of one length, each followed by its tail."""

    start: int
    stop: int
    prefix: int
    keys: Float[Tensor, "segments prefix_and_tail head_dim"]
    values: Float[Tensor, "segments prefix_and_tail head_dim"]


@dataclass(frozen=True)
class RaggedLayer:
    """One layer of a batch: runs of equal length.

    order, inverse: None if the segments are already in order. pair_bytes: of a key and its value.
    """

    order: Int[Tensor, "segments"] | None
    inverse: Int[Tensor, "segments"] | None
    segments: int
    pair_bytes: int
    runs: tuple[EqualLengthSegments, ...]
    sliding_window: int | None

    @property
    def device(self) -> torch.device:
        """Where its pairs lie."""
        return self.runs[0].keys.device

    def narrowed(self, rows: Sequence[int], num_active: int) -> "RaggedLayer":
        """Return the layer of these rows of `num_active`; other runs are as they were."""
        heads, new_row = self.segments // num_active, {row: place for place, row in enumerate(rows)}
        order = list(range(self.segments)) if self.order is None else self.order.tolist()
        runs, kept_rows = [], list[int]()
        for run in self.runs:
            members = [place for place in range(run.start, run.stop) if order[place] // heads in new_row]
            if not members:
                continue
            stores = run.keys, run.values
            if len(members) < run.stop - run.start:
                stores = (store[[place - run.start for place in members]] for store in stores)
            runs.append(EqualLengthSegments(len(kept_rows), len(kept_rows) + len(members), run.prefix, *stores))
            kept_rows += [new_row[order[place] // heads] * heads + order[place] % heads for place in members]
        permutation, inverse = _permutation(kept_rows, self.device)
        return RaggedLayer(permutation, inverse, len(kept_rows), self.pair_bytes, tuple(runs), self.sliding_window)

    def newest(self, cells: int, new: int) -> list[Float[Tensor, "cells heads new head_dim"]]:
        """Keys and values of the `new` tokens behind the prefixes of runs."""
        stores = ([run.keys for run in self.runs], [run.values for run in self.runs])
        parts = (
            torch.cat([store[:, run.prefix : run.prefix + new] for store, run in zip(each, self.runs, strict=True)])
            for each in stores
        )
        natural = (part if self.inverse is None else part.index_select(0, self.inverse) for part in parts)
        return [part.unflatten(0, (cells, -1)) for part in natural]

    def sorted(self, rows: Float[Tensor, "segments *rest"]) -> Float[Tensor, "segments *rest"]:
        """Rows by cell and cache head, in the order of the layer."""
        return rows.contiguous() if self.order is None else rows.index_select(0, self.order)

    def fresh(self, new: KVHeads, cache_heads: int) -> Float[Tensor, "segments new head_dim"]:
        """Return new keys or values for each cache head, in the order of the layer."""
        copies = cache_heads // new.shape[1]
        repeated = new if copies == 1 else new.repeat_interleave(copies, dim=1)
        return self.sorted(repeated.reshape(-1, *new.shape[2:]))


class RaggedBatch(DecodeBatch):
    """Every cell over its own copy of what it keeps (the prefix), with preallocated room for new tokens (the tail).

    The segments of a layer are ordered by prefix length; segments of equal length are one dense product without
    padding. Prefixes are copied layer by layer: caches from an iterator that nothing else references are freed on the
    way, so that only one layer is in memory twice. Prompts of several lengths go together where no layer is local.
    """

    uncaptured = "the host counts the tokens behind the prefixes"

    def __init__(self, caches: Iterable[KVCache | CutCache], cells: int, max_new_tokens: int) -> None:
        remaining, num_tokens, self._first, states = list[list[LayerCache | CutLayer]](), set(), [], []
        for cache in caches:
            remaining.append(list(reversed(cache.layers)))
            num_tokens.add(cache.num_tokens)
            self._first.append(cache.position)
            states.append(cache.recurrent)
            del cache
        assert len({len(layers) for layers in remaining}) == 1
        self._local = any(layer.sliding_window is not None for layer in remaining[0])
        assert len(num_tokens) == 1 or not self._local, "masks of local layers need one length"
        super().__init__(cells, len(remaining), max(num_tokens), max_new_tokens, join_states(states))
        self._first += [self.num_tokens] * (cells - self.num_active)
        self._pairs = [[layer.offsets[-1] for layer in reversed(layers)] for layers in remaining]
        self._layers = dict(sorted(self._laid_out(remaining).items()))

    def _laid_out(self, remaining: Sequence[list[LayerCache | CutLayer]]) -> dict[int, RaggedLayer]:
        """Return the layers by their indices. remaining: the layers of each cell, the last one first; a layer is taken
        off the lists before it is copied, so that it can be freed.
        """
        laid_out = {}
        while remaining[0]:
            layers = [of_cell.pop() for of_cell in remaining]
            laid_out[layers[0].index] = runs_of(layers, self.max_new_tokens)
        return laid_out

    def _attend(self, layer: int, queries: Heads, keys: KVHeads, values: KVHeads, rule: AttentionParams) -> Heads:
        state, (cells, heads, new, head_dim) = self._layers[layer], queries.shape
        cache_heads, tail = state.segments // cells, self._tail(new)
        group, end = heads // cache_heads, self.num_tokens + tail
        fresh = [state.fresh(part, cache_heads) for part in (keys, values)]
        rows = state.sorted(queries.reshape(state.segments, group * new, head_dim))
        sinks = sinks_by_row(rule.sinks, cells, cache_heads, new, queries.dtype)
        sinks = None if sinks is None else state.sorted(sinks)
        hidden_tail = self._unseen(slice(self.num_tokens, end), new, end, group, state, queries.device)
        outputs = []
        for run in state.runs:
            segments, hidden_prefix = slice(run.start, run.stop), None
            stores = run.keys[:, : run.prefix + tail], run.values[:, : run.prefix + tail]
            for store, part in zip(stores, fresh, strict=True):
                self._append(store, run.prefix, part[segments])
            if state.sliding_window is not None:
                columns = slice(self.num_tokens - run.prefix, self.num_tokens)
                hidden_prefix = self._unseen(columns, new, end, group, state, queries.device)
            unread = self._unread(layer, state, run, rows[segments], stores[0], new, rule)
            outputs.append(
                attend_segments(
                    rows[segments],
                    *stores,
                    hidden_tail,
                    rule.scaling,
                    hidden_prefix,
                    softcap=rule.softcap,
                    sinks=None if sinks is None else sinks[segments],
                    unread=unread,
                )
            )
        joined = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        joined = joined if state.inverse is None else joined.index_select(0, state.inverse)
        return joined.view(cells, heads, new, head_dim)

    def _unread(
        self,
        layer: int,
        state: RaggedLayer,
        run: EqualLengthSegments,
        rows: Float[Tensor, "segments rows head_dim"],
        keys: Float[Tensor, "segments pairs head_dim"],
        new: int,
        rule: AttentionParams,
    ) -> Bool[Tensor, "segments rows pairs"] | None:
        """Return the pairs that the rows of a run's segments do not read: by default none."""
        return None

    def _tail(self, new: int) -> int:
        """Return how many tokens behind a prefix are attended to while `new` ones are read."""
        return self.num_new_tokens + new

    def _append(
        self, store: Float[Tensor, "segments pairs head_dim"], prefix: int, new: Float[Tensor, "segments new head_dim"]
    ) -> None:
        """Write new pairs behind the prefix and the tokens read since."""
        store[:, prefix + self.num_new_tokens :] = new

    def _unseen(
        self, columns: slice, new: int, end: int, group: int, state: RaggedLayer, device: torch.device
    ) -> Bool[Tensor, "rows columns"] | None:
        """Return the mask of the positions `columns` for rows of a segment."""
        return unseen(columns, new, end, group, state.sliding_window, device)

    def narrow(self, cells: Sequence[int]) -> None:
        """Leave out the other cells, on a CPU. The bits of the others do not change."""
        devices = {layer.device.type for layer in self._layers.values()}
        if self.recurrent is not None or devices != {"cpu"}:
            return
        rows = [self.order.index(cell) for cell in cells]
        self._layers = {index: layer.narrowed(rows, self.num_active) for index, layer in self._layers.items()}
        self._first = [self._first[row] for row in rows] + [self.num_tokens] * (self.cells - len(rows))
        self.order, self.num_active = list(cells), len(cells)

    def appended(self, caches: Sequence[KVCache]) -> list[KVCache]:
        """Return the caches of which the batch holds copies, with the tokens read since as kept pairs.

        Not for caches whose kept pairs are renumbered.
        """
        assert all(cache.position == cache.num_tokens for cache in caches)
        tails = {index: layer.newest(self.num_active, self.num_new_tokens) for index, layer in self._layers.items()}
        grown = []
        for cell, cache in enumerate(caches):
            layers = tuple(
                layer.append(tails[layer.index][0][cell], tails[layer.index][1][cell], cache.num_tokens)
                for layer in cache.layers
            )
            grown.append(replace(cache, layers=layers, num_tokens=cache.num_tokens + self.num_new_tokens, stacks=()))
        return grown

    @property
    def positions(self) -> list[int]:
        """As in `DecodeBatch`; they differ if kept pairs are renumbered."""
        return [first + self.num_new_tokens for first in self._first]

    @property
    def peak_bytes(self) -> list[int]:
        """Bytes that each active cell occupies while it decodes: its pairs and its preallocated tails."""
        layers = self._layers.values()
        tails = sum(layer.segments * self.max_new_tokens * layer.pair_bytes for layer in layers) // self.num_active
        return [tails + sum(map(mul, pairs, (layer.pair_bytes for layer in layers))) for pairs in self._pairs]

    def bytes_read(self, cell: int, first: int, tokens: int) -> BytesRead | None:
        """Return all that the cell holds when each token is read; of a local layer, its window."""
        if not tokens:
            return None
        read, mean_tail = 0.0, first + (tokens + 1) / 2
        for pairs, layer in zip(self._pairs[cell], self._layers.values(), strict=True):
            heads, window = layer.segments // self.num_active, layer.sliding_window
            each = pairs + heads * mean_tail
            if window is not None:
                ends = range(self.num_tokens + first + 1, self.num_tokens + first + tokens + 1)
                each = heads * sum(min(window, end) for end in ends) / tokens
            read += each * layer.pair_bytes
        return BytesRead(read, 0.0)


def unseen(
    positions: slice, new: int, end: int, group: int, window: int | None, device: torch.device
) -> Bool[Tensor, "rows columns"] | None:
    """Return the mask of rows of a segment (`group` heads, `new` newest tokens before `end`); None: no mask."""
    return None if new == 1 and window is None else hidden(new, end, positions, device, window).repeat(group, 1)


def sinks_by_row(
    sinks: Float[Tensor, "heads"] | None, cells: int, cache_heads: int, new: int, dtype: torch.dtype
) -> Float[Tensor, "segments rows"] | None:
    """Return the sink of every row of every segment, in the order of cells and cache heads."""
    if sinks is None:
        return None
    return sinks.to(dtype).view(cache_heads, -1).repeat_interleave(new, dim=1).repeat(cells, 1)


def runs_of(own: Sequence[LayerCache | CutLayer], max_new_tokens: int) -> RaggedLayer:
    """Return the cache heads of a layer of all cells as runs of equal length, shortest prefix first."""
    layers = [layer.copied if isinstance(layer, CutLayer) else layer for layer in own]
    like, sliding_window = layers[0].keys, layers[0].sliding_window
    pair_bytes = 2 * like.shape[1] * like.itemsize
    assert {layer.cache_heads for layer in layers} == {layers[0].cache_heads}, "cells of a batch share one layout"
    segments = [
        (layer.keys[start:stop], layer.values[start:stop])
        for layer in layers
        for start, stop in zip(layer.offsets, layer.offsets[1:], strict=False)
    ]
    order = sorted(range(len(segments)), key=lambda index: len(segments[index][0]))
    ordered, runs, start = [segments[index] for index in order], [], 0
    for length, members in groupby(ordered, key=lambda segment: len(segment[0])):
        pairs = []
        for prefixes in zip(*members, strict=True):
            pairs.append(like.new_empty(len(prefixes), length + max_new_tokens, like.shape[1]))
            pairs[-1][:, length:] = 0  # hidden columns count as weight 0 times their value
            for row, prefix in zip(pairs[-1], prefixes, strict=True):
                row[:length] = prefix
        runs.append(EqualLengthSegments(start, start + len(pairs[0]), length, *pairs))
        start += len(pairs[0])
    permutation, inverse = _permutation(order, like.device)
    return RaggedLayer(permutation, inverse, len(segments), pair_bytes, tuple(runs), sliding_window)


def _permutation(order: list[int], device: torch.device) -> tuple[Tensor, Tensor] | tuple[None, None]:
    """Return an order as indices, and its inverse; None if it is ascending."""
    if order == sorted(order):
        return None, None
    permutation = torch.tensor(order, device=device)
    return permutation, permutation.argsort()
