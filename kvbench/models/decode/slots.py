"""Slots: the KV pairs of cells that evict while they decode; a step is a few operations over the heads of all cells.

Each cache head (segment) owns slots for as many pairs as it holds at most between two evictions. New pairs take its
first free slots. No number of a segment is computed from those of another one, unless its policy compares heads.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, groupby

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kvbench.cache.attention import Rule, fused, log_sum_exp
from kvbench.cache.kernels.choice import Kernels, ragged_decode_of, row_sums_of, slot_kernels_of
from kvbench.cache.kernels.ragged_decode import SegmentRows, Segments
from kvbench.cache.kernels.row_sums import RowTerm
from kvbench.cache.kv_cache import POSITION, ROTATED, DensePairs, LayerCache, Window
from kvbench.cache.shapes import Rows
from kvbench.eviction.incremental import ACCUMULATED, IncrementalEviction
from kvbench.eviction.scores.by_kernels import CHANGED, finishes, merge_of, row_term
from kvbench.models.decode.batch import Heads, KVHeads, sinks_by_row
from kvbench.models.rope import KeyReRotation

FREE = torch.iinfo(POSITION).max
"""The position of an empty slot: later than any token."""

Fresh = Int[Tensor, "3 1 new"]
"""The positions of new tokens, and 0 for their state, on the device."""


@dataclass(frozen=True)
class Reading:
    """What the cells of a store have in common while they read `new` tokens at a time, at most `left` in total.

    every: tokens between evictions; None: never. re_rotation: how keys rotate, for cells with `policy.positions=cache`;
    None: there are none. Where PyTorch computes, all cells have it or none.
    """

    new: int
    left: int
    every: int | None
    kernels: Kernels
    re_rotation: KeyReRotation | None = None


@dataclass(frozen=True)
class Run:
    """Segments start to stop, which are scored together, as `stepping` says. dense: whether they hold equally many
    pairs.
    """

    start: int
    stop: int
    stepping: IncrementalEviction
    dense: bool

    @property
    def segments(self) -> slice:
        """The segments of the run."""
        return slice(self.start, self.stop)


class SlotLayer(ABC):
    """One layer of several cells, from their caches and evictions.

    lengths: pairs that every segment holds between two passes. limits: how many it may keep. owners: the cell and cache
    head of each segment. broken: which ones had a score that is NaN or inf when last scored. failures: why a cell could
    not be scored. Segments are ordered by length where PyTorch computes, then by pool and score; `order` is None if
    that is the order of cells and cache heads.
    """

    def __init__(
        self, layers: Sequence[LayerCache], steppings: Sequence[IncrementalEviction], reading: Reading
    ) -> None:
        first, like = layers[0], layers[0].keys
        self.index, self.cells = first.index, len(layers)
        self.cache_heads, self.query_heads = first.cache_heads, first.query_heads
        self.device, self.reading, self.steppings = like.device, reading, steppings
        self.decode = ragged_decode_of("triton") if reading.kernels == "triton" and reading.new == 1 else None
        self._kernels = None if self.decode is None else slot_kernels_of(reading.kernels)
        self._row_sums = None if self.decode is None or reading.every != 1 else row_sums_of(reading.kernels)
        scorings = [(stepping.policy.pool, self._scoring(stepping, cell)) for cell, stepping in enumerate(steppings)]
        pools = [pool for pool, _ in scorings]
        segments = []
        for cell, (layer, stepping) in enumerate(zip(layers, steppings, strict=True)):
            for head, length in enumerate(layer.lengths):
                limit = min(capacity_of(stepping, self.index, head), length + reading.left)
                size = (length, limit) if self._dense(stepping) else (-1, -1)
                place = size, pools.index(pools[cell]), scorings.index(scorings[cell])
                segments.append((place, length, limit, cell, head))
        order = sorted(range(len(segments)), key=lambda number: segments[number][0])
        inverse = sorted(range(len(order)), key=order.__getitem__)
        moved = order != sorted(order)
        self.order, self.inverse = (self._numbers(part) if moved else None for part in (order, inverse))
        places, self.lengths, self.limits, cells, heads = (
            list(part) for part in zip(*(segments[number] for number in order), strict=True)
        )
        self.owners = list(zip(cells, heads, strict=True))
        self.rooms = [self._room(length, limit) for length, limit in zip(self.lengths, self.limits, strict=True)]
        self.starts = [0, *accumulate(self.rooms)]
        self._longest = max(self.rooms)
        self.runs, self.blocks = [], []
        for _, members in groupby(range(len(order)), key=places.__getitem__):
            numbers = list(members)
            stepping = steppings[cells[numbers[0]]]
            self.runs.append(Run(numbers[0], numbers[-1] + 1, stepping, self._dense(stepping)))
        for _, runs in groupby(self.runs, key=lambda run: (self.lengths[run.start], self.limits[run.start])):
            alike = list(runs)
            self.blocks.append(replace(alike[0], stop=alike[-1].stop))
        self.pairs = like.new_zeros(2, self.starts[-1], like.shape[1])
        accumulates = any(stepping.accumulates for stepping in steppings)
        rotated = reading.re_rotation is not None
        # positions, and the running scores and the rotations of keys as the bits of float32
        self._numbers_of_slots = torch.zeros(
            1 + accumulates + rotated, len(order), self._longest, dtype=POSITION, device=self.device
        )
        self._names = [ACCUMULATED] * accumulates + [ROTATED] * rotated
        self._name_numbers()
        self.positions.fill_(FREE)
        for segment, (cell, head) in enumerate(self.owners):
            layer, length = layers[cell], self.lengths[segment]
            held, slots = slice(layer.offsets[head], layer.offsets[head + 1]), slice(self.starts[segment], None)
            for store, pairs in zip(self.pairs, (layer.keys, layer.values), strict=True):
                store[slots][:length] = pairs[held]
            self.positions[segment, :length] = layer.positions[held]
            for name, numbers in self._states_of(cell).items():
                numbers[segment, :length] = layer.state[name][held]
        self._bases = self._numbers(self.starts[:-1])
        terms = [(not self._dense(stepping) and self._term(stepping)) or "nothing" for stepping in steppings]
        if set(terms) != {"nothing"}:
            assert self._row_sums is not None
            merges = [
                "none" if term == "nothing" else merge_of(stepping.policy, stepping.score)
                for term, stepping in zip(terms, steppings, strict=True)
            ]
            codes = self._row_sums.CODES
            self._terms = self._numbers([codes[terms[cell]] for cell, _ in self.owners]).int()
            self._merges = self._numbers([codes[merges[cell]] for cell, _ in self.owners]).int()
        else:
            self._terms = self._merges = None
        self._adds = None
        summed = [own for own, term in zip(steppings, terms, strict=True) if own.accumulates and term != "nothing"]
        if accumulates and all(map(_is_sum_of_row, summed)):  # otherwise they would take the place of running scores
            self._adds = self._numbers([int(steppings[cell].accumulates) for cell, _ in self.owners]).int()
        if rotated and self._kernels is not None:
            assert reading.re_rotation is not None
            self._rotation = reading.re_rotation.by_layer[self.index]
            self._frequencies = self._rotation.frequencies.float().to(self.device)
            self._turns = self._numbers([int(_renumbers(steppings[cell])) for cell, _ in self.owners]).int()
        self.broken: Tensor | None = None
        self.failures: dict[int, str] = {}
        self._views: dict[int, LayerCache] = {}
        self._see_lengths()

    def _name_numbers(self) -> None:
        self.positions, *states = self._numbers_of_slots
        self.states = {name: numbers.view(torch.float32) for name, numbers in zip(self._names, states, strict=True)}

    def _states_of(self, cell: int) -> dict[str, Float[Tensor, "segments slots"]]:
        """The states that the pairs of a cell have, for all segments."""
        stepping = self.steppings[cell]
        has = {ACCUMULATED: stepping.accumulates, ROTATED: _renumbers(stepping)}
        return {name: numbers for name, numbers in self.states.items() if has[name]}

    @abstractmethod
    def _scoring(self, stepping: IncrementalEviction, cell: int) -> Hashable:
        """What cells must have in common for their heads to be scored together."""

    @abstractmethod
    def _dense(self, stepping: IncrementalEviction) -> bool:
        """Whether only heads of equal length are scored together."""

    @abstractmethod
    def _room(self, length: int, limit: int) -> int:
        """Slots of a segment of this length, which may keep `limit` pairs."""

    @abstractmethod
    def _evict(self, window: Window | None, token: int, fresh: Fresh, due: bool) -> None:
        """Record what the new tokens saw, `window`, and evict if it is `due`."""

    @abstractmethod
    def _order_of(self, segment: int) -> Int[Tensor, "_"]:
        """The slots of a segment in the order of its cache."""

    @property
    @abstractmethod
    def _observes(self) -> bool:
        """Whether the attention of the new tokens is recorded."""

    @cached_property
    def _places(self) -> Int[Tensor, "slots"]:
        """Where the numbers of each slot stand among those of all segments, which are padded."""
        places = [torch.arange(room) + segment * self._longest for segment, room in enumerate(self.rooms)]
        return torch.cat(places).to(self.device, non_blocking=True)

    def _term(self, stepping: IncrementalEviction) -> RowTerm | None:
        """The sum of a new token's row that a cell's scores are, if a kernel computes them for all cells at once."""
        return row_term(stepping.score) if self._row_sums is not None else None

    def _sums(self, window: Window | None) -> Float[Tensor, "segments slots"] | None:
        """The sum of every slot, merged over the query heads of each segment, and added to the running scores if there
        is `_adds`; None if no segment has a `_term`.
        """
        if self._terms is None:
            return None
        assert window is not None and self._row_sums is not None and self._merges is not None
        segments, group = len(self.owners), self.query_heads // self.cache_heads
        rows, outputs = (part.view(segments, group, -1) for part in (window.queries, window.outputs))
        arrays = (rows, self._keys, self.pairs[1], outputs, window.lse.view(segments, group), self._segments)
        codes = (self._terms, self._merges)
        state = None if self._adds is None else (self.states[ACCUMULATED], self._adds)
        return self._row_sums.row_sums(*arrays, *codes, window.scaling, window.softcap, state)

    def _numbers(self, numbers: Sequence[int]) -> Int[Tensor, "_"]:
        return torch.tensor(numbers).to(self.device, non_blocking=True)

    def _see_lengths(self) -> None:
        """Everything that depends on how many pairs the segments hold, which the host knows."""
        new = self.reading.new
        self.grown = [length + new for length in self.lengths]
        lengths = self._numbers(self.lengths)
        columns = lengths[:, None] if new == 1 else lengths[:, None] + torch.arange(new, device=self.device)
        self._free_slots = (self._bases[:, None] + columns).flatten()
        self._columns = columns.expand(len(self._numbers_of_slots), -1, -1)
        self._held = (lengths + new).int()
        self._segments = Segments(self._bases, self._held, self._longest)
        self._parts: dict[int, Segments] = {}
        self._slots_of_new = self._columns[0].float() if ROTATED in self.states else None
        by_cell = [0] * self.cells
        for (cell, _), length in zip(self.owners, self.lengths, strict=True):
            by_cell[cell] += length
        pair_bytes = 2 * self.pairs.shape[2] * self.pairs.itemsize
        self.bytes_held = [
            pairs * (pair_bytes + 4 * (1 + len(self._states_of(cell)))) for cell, pairs in enumerate(by_cell)
        ]

    def attend(
        self, queries: Heads, keys: KVHeads, values: KVHeads, rule: Rule, token: int, fresh: Fresh, due: bool
    ) -> Heads:
        """Append the pairs of new tokens to every segment, attend to all pairs, and evict if it is `due`.

        token: the position of the first.
        """
        rows = queries.reshape(len(self.owners), -1, queries.shape[3])
        dtype = torch.float32 if rule.sinks is None or self.decode is not None else rule.sinks.dtype
        sinks = sinks_by_row(rule.sinks, self.cells, self.cache_heads, 1, dtype)
        if self.order is not None:
            rows = rows.index_select(0, self.order)
            sinks = None if sinks is None else sinks.index_select(0, self.order)
        self._append(keys, values, fresh)
        self._keys, self._views = self._shown(), {}
        outputs, window = self._observe(rows, rule, sinks)
        self._evict(window, token, fresh, due)
        self._keys, self._views = self.pairs[0], {}
        outputs = outputs.view(rows.shape)
        outputs = outputs if self.inverse is None else outputs.index_select(0, self.inverse)
        return outputs.to(queries.dtype).view(queries.shape)

    def _append(self, keys: KVHeads, values: KVHeads, fresh: Fresh) -> None:
        """Write new pairs behind those of their segments, with their positions and states."""
        if self._kernels is not None:
            arrays = self.pairs, self._numbers_of_slots, keys, values, self.order, self._segments
            self._kernels.append(*arrays, fresh, ROTATED in self.states)
            return
        segments, (new, head_dim) = len(self.owners), keys.shape[2:]
        pairs = torch.stack((keys, values)).view(2, -1, new, head_dim)
        pairs = pairs.repeat_interleave(segments // pairs.shape[1], dim=1) if pairs.shape[1] < segments else pairs
        pairs = pairs if self.order is None else pairs.index_select(1, self.order)
        self.pairs.index_copy_(1, self._free_slots, pairs.flatten(1, 2))
        self._numbers_of_slots.scatter_(2, self._columns, fresh[: len(self._columns)].expand(self._columns.shape))
        if self._slots_of_new is not None:  # the model rotated them by their slots
            self.states[ROTATED].scatter_(1, self._columns[0], self._slots_of_new)

    def _shown(self) -> Float[Tensor, "slots head_dim"]:
        """The keys as queries attend to them."""
        if self.reading.re_rotation is None:
            return self.pairs[0]
        if self._kernels is not None:
            turning = self._turns, self._segments, self._frequencies, self._rotation.interleaved
            return self._kernels.turned(self.pairs[0], self.states[ROTATED], *turning)
        rotated = self.states[ROTATED].flatten().index_select(0, self._places)
        return self.reading.re_rotation.by_layer[self.index].turn(
            self.pairs[0], rotated, (self._places % self._longest).float()
        )

    def _pairs_of(self, run: Run) -> tuple[DensePairs, DensePairs]:
        """Keys and values of segments of equal length and room, the new ones included, as views."""
        shape = run.stop - run.start, self.rooms[run.start], self.pairs.shape[2]
        slots, length = slice(self.starts[run.start], self.starts[run.stop]), self.grown[run.start]
        keys, values = (part[slots].view(shape)[:, :length] for part in (self._keys, self.pairs[1]))
        return keys, values

    def _layer(self, run: Run) -> LayerCache:
        """The pairs of a run, the new ones included, as a layer in the order of slots."""
        if run.start in self._views:
            return self._views[run.start]
        heads, segments = run.stop - run.start, None
        if run.dense:
            length = self.grown[run.start]
            keys, values = (part.flatten(0, 1) for part in self._pairs_of(run))
            positions = self.positions[run.segments, :length].flatten()
            offsets = range(0, heads * length + 1, length)
            state = {name: numbers[run.segments, :length].flatten() for name, numbers in self.states.items()}
        else:
            keys, values, state = self._keys, self.pairs[1], {}
            score = run.stepping.score
            reads = score.inputs.window or finishes(score)  # by a kernel, which reads no positions
            flat = self.positions.flatten()
            positions = self._bases[:1].expand(len(keys)) if reads else flat.index_select(0, self._places)
            offsets = self.starts[run.start : run.stop + 1]
            if run.start not in self._parts:
                part = self._bases[run.segments], self._held[run.segments]
                self._parts[run.start] = Segments(*part, self._longest)
            segments = self._parts[run.start]
        query_heads = heads * (self.query_heads // self.cache_heads)
        members = tuple(head for _, head in self.owners[run.segments])  # of several cells for a score `head_by_head`
        layer = LayerCache(
            self.index,
            query_heads,
            keys,
            values,
            positions,
            tuple(offsets),
            state=state,
            segments=segments,
            members=None if members == tuple(range(self.cache_heads)) else members,
        )
        self._views[run.start] = layer
        return layer

    def _observe(
        self, rows: SegmentRows, rule: Rule, sinks: Float[Tensor, "segments group"] | None
    ) -> tuple[Rows, Window | None]:
        """The outputs of the new tokens over the pairs of their segments, by query head of each segment; and the record
        of them, if scores read it.
        """
        queries = rows.view(-1, self.reading.new, rows.shape[2])
        if self.decode is not None:
            arrays = (rows, self._keys, self.pairs[1], self._bases, self._held)
            outputs, lse = self.decode(*arrays, rule.scaling, softcap=rule.softcap, longest=max(self.grown), fine=True)
            if sinks is not None:
                total = torch.logaddexp(lse, sinks)
                outputs, lse = outputs * (lse - total).exp()[..., None], total
            outputs = outputs.view(queries.shape)
            return outputs, Window(queries, outputs, lse.view(-1, 1), rule.scaling, rule.softcap, "triton")
        group, parts, norms = len(queries) // len(self.owners), [], []
        for block in self.blocks:
            heads = queries[block.start * group : block.stop * group]
            own = rule if sinks is None else replace(rule, sinks=sinks[block.segments].flatten())
            keys, values = self._pairs_of(block)
            parts.append(fused(heads, keys, values, own))
            if self._observes:
                norms.append(log_sum_exp(heads, keys, rule.scaling, rule.softcap, own.sinks))
        outputs = parts[0] if len(parts) == 1 else torch.cat(parts)
        if not norms:
            return outputs, None
        kernels: Kernels = "triton" if self.reading.kernels == "triton" else "torch"
        return outputs, Window(queries, outputs, torch.cat(norms), rule.scaling, rule.softcap, kernels)

    def layer_of(self, cell: int) -> LayerCache:
        """A copy of the pairs of one cell, in the order of its cache."""
        segments = self._segments_of(cell)
        orders = {segment: self._order_of(segment) for segment in segments}
        slots = torch.cat([self.starts[segment] + order for segment, order in orders.items()])
        keys, values = self.pairs.index_select(1, slots)
        return LayerCache(
            self.index,
            self.query_heads,
            keys,
            values,
            _in_order(self.positions, orders),
            (0, *accumulate(map(len, orders.values()))),
            state={name: _in_order(numbers, orders) for name, numbers in self._states_of(cell).items()},
        )

    def rows_of(self, cell: int) -> Window | None:
        """What the tokens of a cell saw that were read since the last eviction."""
        return None

    def _segments_of(self, cell: int) -> list[int]:
        """The segments of a cell, by cache head."""
        heads = sorted((head, segment) for segment, (owner, head) in enumerate(self.owners) if owner == cell)
        return [segment for _, segment in heads]


def _in_order(numbers: Tensor, orders: Mapping[int, Tensor]) -> Tensor:
    """Numbers of these segments, each in its order, one after another."""
    return torch.cat([numbers[segment][order] for segment, order in orders.items()])


def capacity_of(stepping: IncrementalEviction, layer: int, head: int) -> int:
    """KV pairs that a cache head of a layer may hold."""
    return stepping.capacity if isinstance(stepping.capacity, int) else stepping.capacity[layer][head]


def _renumbers(stepping: IncrementalEviction) -> bool:
    """Whether kept pairs are numbered anew."""
    return stepping.policy.positions == "cache"


def _is_sum_of_row(stepping: IncrementalEviction) -> bool:
    """Whether raw scores are the sums of a cell, merged over the query heads of each KV head."""
    return type(stepping.score) not in CHANGED and not averages_heads(stepping)


def averages_heads(stepping: IncrementalEviction) -> bool:
    """Whether the raw scores of a cell are a mean over all its heads."""
    return stepping.policy.group_of(stepping.score.group) == "layer_mean"


def not_finite(scores: Float[Tensor, "segments columns"]) -> Bool[Tensor, "segments"]:
    """Which rows have a number that is NaN or inf: 0 times it is NaN."""
    return (scores * 0).sum(dim=1).isnan()
