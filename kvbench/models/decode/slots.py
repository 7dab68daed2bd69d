"""Slots: the KV pairs of cells that evict after every token; a step is a few operations over all of their heads.

Each cache head (segment) owns slots for as many pairs as it may hold, and one more. A new pair takes the first free
slot; when a pair is evicted, the newest one takes its slot. Slots are thus in no order, except that protected first
tokens stay in front and the newest pair comes last; `positions` tells the order where a pool needs it. No number of a
segment is computed from those of another one.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kvbench.cache.attention import Rule, over_layer
from kvbench.cache.kernels.choice import Kernels, ragged_decode_of, slot_kernels_of
from kvbench.cache.kernels.ragged_decode import Segments
from kvbench.cache.kv_cache import POSITION, LayerCache, Window
from kvbench.eviction.allocation.heads import Heads as HeadAllocation
from kvbench.eviction.incremental import ACCUMULATED, IncrementalEviction
from kvbench.eviction.pooling import Group, reduce_group
from kvbench.eviction.scores.score import Reduce, Score
from kvbench.models.decode.batch import Heads, KVHeads, sinks_by_row

FREE = torch.iinfo(POSITION).max
"""The position of an empty slot: later than any token."""

Rows = Float[Tensor, "segments rows head_dim"]


def slots_key(stepping: IncrementalEviction, kernels: Kernels) -> Hashable | None:
    """The key that cells must have in common to share slots; None for cells that need a cache of their own."""
    policy, score = stepping.policy, stepping.eviction.score
    alone = (
        kernels not in ("torch", "triton")
        or not score.any_order
        or policy.positions == "cache"
        or policy.slot_order == "score"
        or policy.heads.kind == "binary"
        or (type(policy.heads).chooses is not HeadAllocation.chooses and policy.layers.kind != "global")
        or policy.group_of(score.group) == "layer_mean"
    )
    return None if alone else (policy.layout, policy.sinks, policy.pool, stepping.accumulates)


@dataclass(frozen=True)
class Run:
    """Segments start to stop, which are scored together. dense: whether they hold equally many pairs."""

    start: int
    stop: int
    score: Score
    reduce: Reduce
    group: Group
    dense: bool


class SlotLayer:
    """One layer of several cells of equal `slots_key`, from their caches and evictions.

    lengths, capacities: pairs that every segment holds after a step, and may hold. owners: the cell and cache head of
    each segment. broken: which ones had a score that is NaN or inf when last scored. Segments are ordered by score, and
    by length where PyTorch computes; `order` is None if that is the order of cells and cache heads.
    """

    def __init__(
        self, layers: Sequence[LayerCache], steppings: Sequence[IncrementalEviction], new_tokens: int, kernels: Kernels
    ) -> None:
        first, like = layers[0], layers[0].keys
        self.index, self.cells, self.cache_heads, self.query_heads = (
            first.index,
            len(layers),
            first.cache_heads,
            first.query_heads,
        )
        self.device, self.decode = like.device, ragged_decode_of(kernels)
        self._accumulates, self._sinks = steppings[0].accumulates, steppings[0].policy.sinks
        self._pool, self._kernels = steppings[0].policy.pool, slot_kernels_of(kernels)
        segments = []
        for cell, (layer, stepping) in enumerate(zip(layers, steppings, strict=True)):
            policy, score = stepping.policy, stepping.eviction.score
            scoring = (score, policy.reduce, policy.group_of(score.group))
            dense = self.decode is None or not score.inputs.window
            for head, length in enumerate(layer.lengths):
                limit = min(capacity_of(stepping, self.index, head), length + new_tokens)
                segments.append(((scoring, dense), length, limit, cell, head, policy.last))
        scorings = list(dict.fromkeys(key for key, *_ in segments))

        def place(number: int) -> tuple[int, ...]:
            key, length, limit, *_ = segments[number]
            return (scorings.index(key), *((length, limit) if key[1] else ()))

        order = sorted(range(len(segments)), key=place)
        inverse = sorted(range(len(order)), key=order.__getitem__)
        moved = order != sorted(order)
        self.order, self.inverse = (self._numbers(part) if moved else None for part in (order, inverse))
        ordered = [segments[number] for number in order]
        self.lengths, self.capacities = ([segment[at] for segment in ordered] for at in (1, 2))
        self.owners = [(segment[3], segment[4]) for segment in ordered]
        self.starts = [0, *accumulate(capacity + 1 for capacity in self.capacities)]
        self._longest = max(self.capacities) + 1
        self.runs = []
        for _, members in groupby(range(len(order)), key=lambda at: place(order[at])):
            numbers = list(members)
            ((score, reduce, group), dense), *_ = ordered[numbers[0]]
            self.runs.append(Run(numbers[0], numbers[-1] + 1, score, reduce, group, dense))
        self.pairs = like.new_zeros(2, self.starts[-1], like.shape[1])
        # positions, and the running scores as the bits of float32
        self._numbers_of_slots = torch.zeros(
            1 + self._accumulates, len(order), self._longest, dtype=POSITION, device=self.device
        )
        self.positions = self._numbers_of_slots[0].fill_(FREE)
        self.state = self._numbers_of_slots[1].view(torch.float32) if self._accumulates else None
        for segment, (cell, head) in enumerate(self.owners):
            layer, length = layers[cell], self.lengths[segment]
            held, slots = slice(layer.offsets[head], layer.offsets[head + 1]), slice(self.starts[segment], None)
            for store, pairs in zip(self.pairs, (layer.keys, layer.values), strict=True):
                store[slots][:length] = pairs[held]
            self.positions[segment, :length] = layer.positions[held]
            if self.state is not None:
                self.state[segment, :length] = layer.state[ACCUMULATED][held]
        lasts = [segment[5] for segment in ordered]
        self._recent, self._most = (self._numbers(part).int() for part in (lasts, self.capacities))
        self._numbered = False  # whether the next free slots have their positions already
        self._common = lasts[0] if len(set(lasts)) == 1 else self._recent[:, None]
        self._bases = self._numbers(self.starts[:-1])
        self.broken: Tensor | None = None
        self._see_lengths()

    def _numbers(self, numbers: Sequence[int]) -> Int[Tensor, "_"]:
        return torch.tensor(numbers).to(self.device, non_blocking=True)

    def _see_lengths(self) -> None:
        """Everything that depends on how many pairs the segments hold, which the host knows."""
        self.grown = [length + 1 for length in self.lengths]
        self._evicting = [n > most for n, most in zip(self.grown, self.capacities, strict=True)]
        lengths = self._numbers(self.lengths)
        self._free_slots = self._bases + lengths
        self._columns = lengths.view(1, -1, 1).expand(len(self._numbers_of_slots), -1, 1)
        self._held = (lengths + 1).int()
        self._evicts = torch.tensor(self._evicting).to(self.device, non_blocking=True)
        by_cell = [0] * self.cells
        for (cell, _), length in zip(self.owners, self.lengths, strict=True):
            by_cell[cell] += length
        pair_bytes = 2 * self.pairs.shape[2] * self.pairs.itemsize + 4 * len(self._numbers_of_slots)
        self.bytes_held = [pairs * pair_bytes for pairs in by_cell]

    def attend(
        self, queries: Heads, keys: KVHeads, values: KVHeads, rule: Rule, token: int, fresh: Int[Tensor, "2 1 1"]
    ) -> Heads:
        """Append the pair of a token to every segment, attend to all pairs, and evict from full segments.

        token: its position. fresh: that and 0, its running score, on the device.
        """
        segments, head_dim = len(self.lengths), queries.shape[3]
        new = torch.stack((keys, values)).view(2, -1, head_dim)
        new = new.repeat_interleave(segments // new.shape[1], dim=1) if new.shape[1] < segments else new
        rows = queries.reshape(segments, -1, head_dim)
        dtype = torch.float32 if rule.sinks is None or self.decode is not None else rule.sinks.dtype
        sinks = sinks_by_row(rule.sinks, self.cells, self.cache_heads, 1, dtype)
        if self.order is not None:
            rows, new = rows.index_select(0, self.order), new.index_select(1, self.order)
            sinks = None if sinks is None else sinks.index_select(0, self.order)
        self.pairs.index_copy_(1, self._free_slots, new)
        if not self._numbered:
            self._numbers_of_slots.scatter_(2, self._columns, fresh[: len(self._columns)].expand_as(self._columns))
        window = self._observe(rows, rule, sinks)
        if self._accumulates or any(self._evicting):
            self._evict(self._scores(window), new, token, fresh)
        if self.lengths != self.capacities:
            self._numbered = False
            self.lengths = [min(n, most) for n, most in zip(self.grown, self.capacities, strict=True)]
            self._see_lengths()
        outputs = window.outputs.view(rows.shape)
        outputs = outputs if self.inverse is None else outputs.index_select(0, self.inverse)
        return outputs.to(queries.dtype).view(queries.shape)

    def _layer(self, run: Run) -> LayerCache:
        """The pairs of a run, the new ones included, as a layer in the order of slots."""
        heads, group = run.stop - run.start, self.query_heads // self.cache_heads
        keys, values = self.pairs
        segments = None
        if run.dense:
            length, room = self.grown[run.start], self.capacities[run.start] + 1
            slots = slice(self.starts[run.start], self.starts[run.stop])
            keys, values = (part[slots].view(heads, room, -1)[:, :length].flatten(0, 1) for part in (keys, values))
            positions = self.positions[run.start : run.stop, :length].flatten()
            offsets = range(0, heads * length + 1, length)
        else:
            positions = self._bases[:1].expand(len(keys))  # scores by a kernel read none
            offsets = self.starts[run.start : run.stop + 1]
            heads_of_run = slice(run.start, run.stop)
            segments = Segments(self._bases[heads_of_run], self._held[heads_of_run], self._longest)
        return LayerCache(self.index, heads * group, keys, values, positions, tuple(offsets), segments=segments)

    def _observe(self, rows: Rows, rule: Rule, sinks: Float[Tensor, "segments rows"] | None) -> Window:
        """The attention of the new tokens over the pairs of their segments, by query head of each segment."""
        queries = rows.view(-1, 1, rows.shape[2])
        if self.decode is not None:
            arrays = (rows, *self.pairs, self._bases, self._held)
            outputs, lse = self.decode(*arrays, rule.scaling, softcap=rule.softcap, longest=self._longest, fine=True)
            if sinks is not None:
                total = torch.logaddexp(lse, sinks)
                outputs, lse = outputs * (lse - total).exp()[..., None], total
            return Window(queries, outputs.view(queries.shape), lse.view(-1, 1), rule.scaling, rule.softcap, "triton")
        group, parts = rows.shape[1], []
        for run in self.runs:
            heads = slice(run.start * group, run.stop * group)
            run_rule = (
                rule if sinks is None else Rule(rule.scaling, rule.softcap, sinks[run.start : run.stop].flatten())
            )
            parts.append(over_layer(queries[heads], self._layer(run), run_rule))
        outputs, lse = (torch.cat(arrays) for arrays in zip(*((part.outputs, part.lse) for part in parts), strict=True))
        return Window(queries, outputs, lse, rule.scaling, rule.softcap)

    def _scores(self, window: Window) -> Float[Tensor, "segments slots"]:
        """The scores of every slot of each segment, merged over its query heads."""
        group, parts = window.queries.shape[0] // len(self.lengths), []
        for run in self.runs:
            rows = window.of_span(run.start * group, run.stop * group) if run.score.inputs.window else None
            raw = reduce_group(run.score(self._layer(run), rows, run.reduce), run.group, run.stop - run.start)
            short = self._longest - raw.shape[1]
            parts.append(torch.nn.functional.pad(raw, (0, short)) if short else raw)
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _evict(
        self,
        scores: Float[Tensor, "segments slots"],
        newest: Float[Tensor, "2 segments head_dim"],
        token: int,
        fresh: Int[Tensor, "2 1 1"],
    ) -> None:
        """Add to the running scores; let the newest pair of each full segment take the slot of the worst one.

        The worst one has the lowest score, then the lowest unpooled score, then the highest position.
        """
        if self.state is not None:
            scores = self.state.add_(scores)
        if not any(self._evicting):
            self.broken = ~scores.isfinite().all(dim=1)
            return
        positions, first, pooled, order = self.positions, self._sinks, None, None
        if self._pool is not None:  # along the tokens, before the newest protected ones
            protected = positions > token - self._common
            pooled = scores.masked_fill(protected, -torch.inf if self._pool.kind == "max" else 0)
            order = positions.argsort(dim=1)
            pooled = self._pool(pooled.gather(1, order))
        if self._kernels is not None:
            ranking = None if pooled is None else (pooled, order)
            segments = Segments(self._bases, self._held, self._longest)
            limits = self._most, self._recent, first, fresh
            self.broken = self._kernels.evict(self.pairs, positions, self.state, scores, ranking, segments, *limits)
            self._numbered = True
            return
        self.broken = ~scores.isfinite().all(dim=1)
        ranked = scores if pooled is None or order is None else torch.empty_like(pooled).scatter_(1, order, pooled)
        ranked = ranked.masked_fill(positions > token - self._common, torch.inf)[:, first:]
        better = ranked != ranked.amin(dim=1, keepdim=True)
        if pooled is not None:
            unpooled = scores[:, first:].masked_fill(better, torch.inf)
            better = unpooled != unpooled.amin(dim=1, keepdim=True)
        slot = positions[:, first:].masked_fill(better, -1).argmax(dim=1) + first
        slot = torch.where(self._evicts, slot, self._columns[0, :, 0])
        self.pairs.index_copy_(1, self._bases + slot, newest)
        numbers, index = self._numbers_of_slots, slot[None, :, None].expand_as(self._columns)
        numbers.scatter_(2, index, numbers.gather(2, self._columns))

    def layer_of(self, cell: int) -> LayerCache:
        """A copy of the pairs of one cell, in the order of positions."""
        heads = sorted((head, segment) for segment, (owner, head) in enumerate(self.owners) if owner == cell)
        segments = [segment for _, segment in heads]
        orders = [self.positions[segment, : self.lengths[segment]].argsort() for segment in segments]

        def in_order(numbers: Tensor) -> Tensor:
            return torch.cat([numbers[segment][order] for segment, order in zip(segments, orders, strict=True)])

        slots = torch.cat([self.starts[segment] + order for segment, order in zip(segments, orders, strict=True)])
        keys, values = self.pairs.index_select(1, slots)
        return LayerCache(
            self.index,
            self.query_heads,
            keys,
            values,
            in_order(self.positions),
            (0, *accumulate(map(len, orders))),
            state={} if self.state is None else {ACCUMULATED: in_order(self.state)},
        )


def capacity_of(stepping: IncrementalEviction, layer: int, head: int) -> int:
    """KV pairs that a cache head of a layer may hold."""
    return stepping.capacity if isinstance(stepping.capacity, int) else stepping.capacity[layer][head]
