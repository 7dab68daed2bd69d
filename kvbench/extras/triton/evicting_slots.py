"""The store of the kernels: the KV pairs of cells that evict while they decode, a token at a time, by a few launches
for all of them. `EvictingCache` is the definition of what it computes; only Triton runs it.

Layout. A *segment* is one cache head of one cell; a *slot* has room for one pair.

    pairs    [2, slots, head_dim]          keys and values; segment s owns the slots from starts[s] to starts[s + 1]
    numbers  [planes, segments, longest]   of each slot its position; and its running score and the position by which
                                           its key was rotated where a cell has them, as the bits of float32

Segments have room for what they hold at most between two evictions, and hold their pairs in the first slots: in the
order of the cache, or, where scores and policy depend on no order (`in_place`), in any order but for protected first
tokens. Segments whose cells are scored alike stand together (`Run`); nothing of a segment is computed from another one
unless its policy compares heads.

A step of `attend`, each line a few launches whatever the number of cells:

    append   every segment gets the new pair in its first free slot
    show     keys as queries attend to them: rotated by their slots where pairs are renumbered
    read     attention of the new token over the pairs of its segment, and its log-sum-exp
    score    sums over its row, each segment the sum of its own score; what follows these sums; pools between
    evict    the newest pair takes the slot of the worst one, or pairs move up; or all pairs move
"""

import sys
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, compress, groupby
from operator import gt
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kvbench.cache.attention import AttentionParams
from kvbench.cache.kernels.ragged_decode import FlatPairs, PerSegment, Segments
from kvbench.cache.kv_cache import POSITION, LayerCache, ObservationWindow, joined, query_heads_of
from kvbench.eviction.allocation.allocation import Heads as HeadAllocation
from kvbench.eviction.allocation.heads import ChunkHeads, SharedHeads
from kvbench.eviction.budget import ThresholdBudget
from kvbench.eviction.incremental import ACCUMULATED, IncrementalEviction
from kvbench.eviction.pooling import reduce_group
from kvbench.eviction.ranking import best_first, mean_over_heads
from kvbench.eviction.scores.ragged import Merge, Planes, RaggedHeads
from kvbench.eviction.scores.score import RawTerm, Score, is_row_sum, row_term_of
from kvbench.extras.triton import column_sums, pooled, ragged_decode, row_sums, slots
from kvbench.models.decode.batch import Heads, KVHeads, sinks_by_row
from kvbench.models.key_rotation import ROTATED
from kvbench.support.errors import UserError

FREE = torch.iinfo(POSITION).max
"""The position of an empty slot: later than any token."""

Newest = Int[Tensor, "1"]
"""The position of the new token, on the device."""
Columns = Float[Tensor, "segments slots"]
OfRun = Float[Tensor, "run slots"]
Order = Int[Tensor, "segments slots"]


@dataclass(frozen=True)
class EvictionClock:
    """Common schedule of the cells of a store: they evict every so many tokens (None: never), of which `pending` were
    read, and read at most `most_tokens` more.
    """

    every: int | None
    pending: int
    most_tokens: int


@dataclass(frozen=True)
class Run:
    """Segments start to stop, which are scored alike, as `evictor` says."""

    start: int
    stop: int
    evictor: IncrementalEviction

    @property
    def segments(self) -> slice:
        """The segments of the run."""
        return slice(self.start, self.stop)


def can_evict(evictor: IncrementalEviction, every: int | None) -> bool:
    """Return whether the kernels can evict from a cell as its definition does."""
    policy, score, term = evictor.policy, evictor.score, row_term_of(evictor.score)
    if every is None:
        return True
    others = any(not step.renumbers for step in policy.steps)
    if evictor.prompt or others or isinstance(evictor.eviction.budget, ThresholdBudget):
        return False
    if term is None or not (policy.pool is None or policy.order == ("group", "pool")):
        return False
    own = (HeadAllocation.chooses, SharedHeads.chooses, ChunkHeads.chooses)
    if not policy.layers.compares_layers and type(policy.heads).chooses not in own:
        return False
    if _averages(evictor) and evictor.accumulates and type(score).refine is not Score.refine:
        return False  # sums of heads that soon hold different pairs: a mean of sums is no sum of means
    if _averages(evictor) and not isinstance(evictor.capacity, int):  # a mean over heads of one length
        return all(len(set(heads)) == 1 for heads in evictor.capacity.values())
    return every == 1 or not score.inputs.window or (is_row_sum(score) and score.over_rows(policy.reduce) is not None)


def _in_place(evictor: IncrementalEviction) -> bool:
    """Return whether the order of slots says nothing to scores and policy, and heads are evicted from one by one."""
    policy = evictor.policy
    alone = type(policy.heads).chooses is HeadAllocation.chooses or policy.layers.compares_layers
    ordered = policy.renumbers or policy.slot_order == "score" or _averages(evictor)
    return is_row_sum(evictor.score) and alone and not ordered


def _averages(evictor: IncrementalEviction) -> bool:
    """Return whether the raw scores of a cell are a mean over all its heads."""
    return evictor.policy.group_of(evictor.score.group) == "layer_mean"


def _shares(evictor: IncrementalEviction) -> bool:
    """Return whether the heads of a cell have one mean score, or one for each chunk."""
    return isinstance(evictor.policy.heads, SharedHeads | ChunkHeads) and not evictor.policy.layers.compares_layers


def _merge(evictor: IncrementalEviction) -> Merge:
    """Return how sums are merged over the query heads of a segment; a mean over heads may follow."""
    group = evictor.policy.group_of(evictor.score.group)
    if evictor.score.row_merge is not None and group != "none":
        return evictor.score.row_merge
    return "mean" if group == "layer_mean" else group


def _term(evictor: IncrementalEviction, every: int | None) -> RawTerm:
    """Return the sum over the row of a single token; `nothing` where several rows are summed, or none."""
    return (row_term_of(evictor.score) if every == 1 else None) or "nothing"


def _scoring(evictor: IncrementalEviction, every: int | None) -> Hashable:
    """Return what cells that are scored together have in common."""
    plain = is_row_sum(evictor.score) and _term(evictor, every) not in ("nothing", "position")
    if every is None or (plain and not _averages(evictor) and not _shares(evictor)):
        return evictor.accumulates
    return evictor.policy, evictor.score


@dataclass(frozen=True)
class Layout:
    """Where the segments lie. owners: the cell and cache head of each. limits: the pairs that it may keep. starts: its
    slots. in_place: whether these are in no order. order: the numbers of the segments by cell and cache head, inverse:
    the other way round; None: they are in this order. runs: those that are scored alike.
    """

    owners: list[tuple[int, int]]
    limits: list[int]
    starts: list[int]
    in_place: list[bool]
    order: PerSegment | None
    inverse: PerSegment | None
    runs: list[Run]

    @property
    def longest(self) -> int:
        """The most slots of a segment."""
        return max(stop - start for start, stop in zip(self.starts, self.starts[1:], strict=False))

    def segments_of(self, cell: int) -> list[int]:
        """Return the segments of a cell, by cache head."""
        heads = sorted((head, segment) for segment, (owner, head) in enumerate(self.owners) if owner == cell)
        return [segment for _, segment in heads]


def _layout(layers: Sequence[LayerCache], evictors: Sequence[IncrementalEviction], reading: EvictionClock) -> Layout:
    """Cells in the order of their scorings."""
    scorings = [_scoring(evictor, reading.every) for evictor in evictors]
    cells = sorted(range(len(layers)), key=lambda cell: scorings.index(scorings[cell]))
    heads, most_tokens, every = layers[0].cache_heads, reading.most_tokens, reading.every
    owners, limits, rooms, in_place, runs = [], [], [], [], []
    for _, alike in groupby(cells, key=lambda cell: scorings.index(scorings[cell])):
        start = len(owners)
        for cell in alike:
            layer, evictor = layers[cell], evictors[cell]
            owners += [(cell, head) for head in range(heads)]
            most = [
                min(limit, length + most_tokens)
                for limit, length in zip(evictor.limits(layer), layer.lengths, strict=True)
            ]
            limits += most
            rooms += [
                length + (most_tokens if every is None else min(most_tokens, max(limit - length, 0) + every))
                for limit, length in zip(most, layer.lengths, strict=True)
            ]
            full = any(map(gt, layer.lengths, most))
            in_place += [every == 1 and _in_place(evictor) and not full] * heads
        runs.append(Run(start, len(owners), evictors[owners[start][0]]))
    numbers = [cell * heads + head for cell, head in owners]
    order = inverse = None
    if numbers != sorted(numbers):
        order = torch.tensor(numbers).to(layers[0].keys.device, non_blocking=True)
        inverse = order.argsort()
    return Layout(owners, limits, [0, *accumulate(rooms)], in_place, order, inverse, runs)


@dataclass(frozen=True)
class SegmentSettings:
    """Rules of policies and scores for each segment, as the kernels read them.

    most, sinks, lasts: pairs that it may keep, and protected first and newest ones. most_by_position: any number of
    those that lie in the order of their scores. apart: newest pairs that are not
    pooled with others. sizes, means: its pool, and whether that is a mean. by_score: whether pairs lie in the order of
    their scores. in_place: whether the newest pair takes the slot of the worst one. turned: whether keys rotate by
    their slots. terms, merges: the sum over the row of a new token; summed: whether there is any. adds: whether that is
    added to the running scores; None: the store adds them.
    """

    most: PerSegment
    most_by_position: PerSegment
    sinks: PerSegment
    lasts: PerSegment
    apart: PerSegment
    sizes: PerSegment
    means: PerSegment
    by_score: PerSegment
    in_place: PerSegment
    turned: PerSegment
    terms: PerSegment
    merges: PerSegment
    summed: bool
    adds: PerSegment | None
    pools: bool
    sorts: bool
    some_by_score: bool
    all_by_score: bool


def _rules(
    layout: Layout, evictors: Sequence[IncrementalEviction], every: int | None, device: torch.device
) -> SegmentSettings:
    owned = [evictors[cell] for cell, _ in layout.owners]
    policies, codes = [own.policy for own in owned], row_sums.CODES
    terms = [_term(own, every) for own in owned]
    reads = [term not in ("nothing", "position") for term in terms]
    pools = [policy.pool for policy in policies]
    by_score = [policy.slot_order == "score" for policy in policies]
    running = [own.accumulates for own in owned]
    chunks = any(isinstance(policy.heads, ChunkHeads) for policy in policies)  # unpooled scores break their ties
    sums_stay = all(
        type(own.score).raw_segments is Score.raw_segments and not _averages(own)
        for own, read in zip(owned, reads, strict=True)
        if own.accumulates and read
    )

    def numbers(values: Sequence[int]) -> PerSegment:
        return torch.tensor(list(map(int, values))).int().to(device, non_blocking=True)

    return SegmentSettings(
        most=numbers(layout.limits),
        most_by_position=numbers(
            [layout.longest if moves else limit for moves, limit in zip(by_score, layout.limits, strict=True)]
        ),
        sinks=numbers([policy.sink_tokens for policy in policies]),
        lasts=numbers([policy.protected_tail for policy in policies]),
        apart=numbers(
            [0 if own.policy.pool is None or own.score.pools_protected else own.policy.protected_tail for own in owned]
        ),
        sizes=numbers([1 if pool is None else pool.size for pool in pools]),
        means=numbers([pool is not None and pool.kind == "avg" for pool in pools]),
        by_score=numbers(by_score),
        in_place=numbers(layout.in_place),
        turned=numbers([policy.renumbers for policy in policies]),
        terms=numbers([codes[term] if read else codes["nothing"] for term, read in zip(terms, reads, strict=True)]),
        merges=numbers([codes[_merge(own)] for own in owned]),
        summed=any(reads),
        adds=numbers(running) if sums_stay and any(running) else None,
        pools=any(pool is not None for pool in pools) or chunks,
        sorts=any(pool is not None and own for pool, own in zip(pools, layout.in_place, strict=True)),
        some_by_score=any(by_score),
        all_by_score=all(by_score),
    )


class Slots:
    """One layer of the cells of a store: from what each holds of the layer, the `EvictingCache` of each, and what the
    tokens saw that were read since the last eviction (`rows`).

    lengths: pairs that every segment holds between two passes. broken: which segments had a score that is NaN or inf
    when last scored. failures: why a cell could not be scored. drops: the cells that lost pairs in the last pass.
    """

    def __init__(
        self,
        layers: Sequence[LayerCache],
        caches: Sequence[Any],
        reading: EvictionClock,
        window: Sequence[ObservationWindow | None],
    ) -> None:
        like = layers[0]
        self.index, self.cache_heads, self.query_heads = like.index, like.cache_heads, like.query_heads
        evictors: list[IncrementalEviction] = [cache.evictor for cache in caches]
        self.evictors, self.reading, self.pending = evictors, reading, reading.pending
        self.re_rotation = next((cache.re_rotation for cache in caches if cache.evictor.policy.renumbers), None)
        self.layout = _layout(layers, evictors, reading)
        self.rules = _rules(self.layout, evictors, reading.every, like.keys.device)
        self.bases = torch.tensor(self.layout.starts[:-1]).to(like.keys.device, non_blocking=True)
        self.reads = any(evictor.score.inputs.window for evictor in evictors) and reading.every is not None
        self.rows = [self._of_segments([part for part in window if part is not None])] if window[0] is not None else []
        self.states = [ACCUMULATED] * any(evictor.accumulates for evictor in evictors)
        self.states += [ROTATED] * (self.re_rotation is not None)
        owners, starts = self.layout.owners, self.layout.starts
        self.lengths = [layers[cell].lengths[head] for cell, head in owners]
        self.pairs = like.keys.new_zeros(2, starts[-1], like.keys.shape[1])
        room = 1 + len(self.states), len(owners), self.layout.longest
        self.numbers = torch.zeros(room, dtype=POSITION, device=like.keys.device)
        self.numbers[0].fill_(FREE)
        for segment, (cell, head) in enumerate(owners):
            layer, length = layers[cell], self.lengths[segment]
            held, slots = slice(layer.offsets[head], layer.offsets[head + 1]), slice(starts[segment], None)
            for store, pairs in zip(self.pairs, (layer.keys, layer.values), strict=True):
                store[slots][:length] = pairs[held]
            self.numbers[0, segment, :length] = layer.positions[held]
            for name in self._states_of(cell):
                self._state(name)[segment, :length] = layer.state[name][held]
        self.memos: list[dict[Hashable, object]] = [{} for _ in self.layout.runs]
        self.broken: Tensor | None = None
        self.failures: dict[int, str] = {}
        self.drops: set[int] = set()
        self.ranked: tuple[Tensor, Tensor] | None = None
        self.held = self._held()

    def _state(self, name: str) -> Columns:
        """Return the numbers of every slot that go by this name."""
        return self.numbers[1 + self.states.index(name)].view(torch.float32)

    def _states_of(self, cell: int) -> list[str]:
        """Return the numbers that the pairs of a cell have besides their positions."""
        evictor = self.evictors[cell]
        has = {ACCUMULATED: evictor.accumulates, ROTATED: evictor.policy.renumbers}
        return [name for name in self.states if has[name]]

    def _held(self) -> Segments:
        """Return the pairs of every segment, the new one included."""
        lengths = torch.tensor(self.lengths).to(self.bases.device, non_blocking=True)
        return Segments(self.bases, (lengths + 1).int(), self.layout.longest)

    def attend(self, queries: Heads, keys: KVHeads, values: KVHeads, rule: AttentionParams, newest: Newest) -> Heads:
        """Append the pairs of the new token to every segment, attend to all pairs, and evict if that is due."""
        slots.append(
            self.pairs, self.numbers, keys, values, self.layout.order, self.held, newest, ROTATED in self.states
        )
        shown = self._shown()
        outputs = self._read(queries, shown, rule)
        every, grown = self.reading.every, [length + 1 for length in self.lengths]
        due = every is not None and self.pending + 1 >= every
        self.drops = self._over(grown) if due else set()
        if due:
            if self._scores_matter:
                order = self._order()
                self._evict(self._scores(shown, order, newest), order, newest)
            self.rows.clear()
            grown = list(map(min, grown, self.layout.limits))
        self.pending = 0 if due else self.pending + 1
        if grown != self.lengths:
            self.lengths, self.ranked, self.memos = grown, None, [{} for _ in self.memos]
            self.held = self._held()
        return outputs

    def _shown(self) -> FlatPairs:
        """Return the keys as queries attend to them."""
        if self.re_rotation is None:
            return self.pairs[0]
        rotation = self.re_rotation.by_layer[self.index]
        frequencies = rotation.frequencies.float().to(self.bases.device)
        arrays = self.pairs[0], self._state(ROTATED), self.rules.turned, self.held, frequencies
        return slots.turned(*arrays, rotation.interleaved)

    def _read(self, queries: Heads, shown: FlatPairs, rule: AttentionParams) -> Heads:
        """Return outputs of the new token over the pairs of its segments, and the record of them, if scores read it."""
        rows = queries.reshape(len(self.lengths), -1, queries.shape[3])
        sinks = sinks_by_row(rule.sinks, len(self.evictors), self.cache_heads, 1, torch.float32)
        if self.layout.order is not None:
            rows = rows.index_select(0, self.layout.order)
            sinks = None if sinks is None else sinks.index_select(0, self.layout.order)
        arrays = rows, shown, self.pairs[1], self.bases, self.held.lengths
        longest = max(self.lengths) + 1
        outputs, lse = ragged_decode.ragged_decode(
            *arrays, rule.scaling, softcap=rule.softcap, longest=longest, fine=True
        )
        if sinks is not None:
            total = torch.logaddexp(lse, sinks)
            outputs, lse = outputs * (lse - total).exp()[..., None], total
        if self.reads:
            single = rows.view(-1, 1, rows.shape[2])
            arrays = single, outputs.view(single.shape), lse.view(-1, 1)
            self.rows.append(ObservationWindow(*arrays, rule.scaling, rule.softcap, "triton"))
            del self.rows[: -max(evictor.policy.rows(sys.maxsize) for evictor in self.evictors)]
        outputs = outputs.view(rows.shape)
        outputs = outputs if self.layout.inverse is None else outputs.index_select(0, self.layout.inverse)
        return outputs.to(queries.dtype).view(queries.shape)

    def _over(self, lengths: Sequence[int]) -> set[int]:
        """Return the cells of which a segment of this length holds more than it may keep."""
        over = map(gt, lengths, self.layout.limits)
        return {cell for cell, _ in compress(self.layout.owners, over)}

    @property
    def _scores_matter(self) -> bool:
        """Whether a segment is full, or carries running scores or an order."""
        return bool(self.drops) or self.rules.some_by_score or ACCUMULATED in self.states

    def _scores(self, shown: FlatPairs, order: Order | None, newest: Newest) -> Planes:
        """Return the final score of every slot; and the same without pooling, if any is pooled, along `order`. Any
        number where a pair is protected or there is none.
        """
        rows, rules = joined(self.rows) if self.rows else None, self.rules
        sums = self._sums(rows, shown) if rules.summed and rows is not None else None
        heads = [self._heads(run, memo, shown, newest) for run, memo in zip(self.layout.runs, self.memos, strict=True)]
        scored = list(zip(self.layout.runs, heads, strict=True))
        raw = [self._raw(run, own, rows, sums) for run, own in scored]
        plain = raw[0] if len(raw) == 1 else torch.cat(raw)
        if rules.pools:
            settings = self.held.lengths, rules.apart, rules.sizes, rules.means
            planes = pooled.pooled(plain, order, *settings)
        else:
            planes = plain[None]
        if len(scored) == 1:  # these may be its running scores, which stay
            return self._final(*scored[0], planes, torch.empty_like(planes))
        for run, own in scored:
            self._final(run, own, planes[:, run.segments], planes[:, run.segments])
        return planes

    def _order(self) -> Order | None:
        """Return the slots of each segment in the order that pools follow, if any pooled one is in no order."""
        if not self.rules.sorts:
            return None
        order = self.numbers[0].argsort(dim=1)
        if not self.rules.some_by_score:
            return order
        slots = torch.arange(self.layout.longest, device=order.device)
        return torch.where(self.rules.by_score[:, None] != 0, slots, order)

    def _sums(self, window: ObservationWindow, shown: FlatPairs) -> Columns:
        """Return the sum of every slot over the row of the new token, merged over the query heads of its segment; these
        are the running scores of all segments if `rules.adds`.
        """
        count, rules = len(self.lengths), self.rules
        queries, outputs = (part.view(count, -1, part.shape[2]) for part in (window.queries, window.outputs))
        arrays = (
            queries,
            shown,
            self.pairs[1],
            outputs,
            window.lse.view(count, -1),
            self.held,
            rules.terms,
            rules.merges,
        )
        state = None if rules.adds is None else (self._state(ACCUMULATED), rules.adds)
        return row_sums.row_sums(*arrays, window.scaling, window.softcap, state)

    def _heads(self, run: Run, memo: dict[Hashable, object], shown: FlatPairs, newest: Newest) -> RaggedHeads:
        """Return the inputs of a run's score."""
        lengths, evictor = self.held.lengths[run.segments], run.evictor
        return RaggedHeads(
            index=self.index,
            keys=shown,
            values=self.pairs[1],
            segments=Segments(self.bases[run.segments], lengths, self.layout.longest),
            owners=self.layout.owners[run.segments],
            lengths=[length + 1 for length in self.lengths[run.segments]],
            group=self.query_heads // self.cache_heads,
            merge=_merge(evictor),
            recent=evictor.policy.protected_tail,
            newest=lengths - 1 if evictor.policy.renumbers else newest,
            memo=memo,
        )

    def _raw(self, run: Run, heads: RaggedHeads, window: ObservationWindow | None, sums: Columns | None) -> OfRun:
        """Return what is pooled of a run, after adding to the running scores."""
        evictor, own = run.evictor, None if sums is None else sums[run.segments]
        try:
            if row_term_of(evictor.score) == "position":
                own = self.numbers[0, run.segments].float()
            elif window is not None and self.reading.every != 1 and evictor.score.inputs.window:
                own = self._over_rows(run, heads, window)
            own = evictor.score.raw_segments(heads, own)
        except UserError as error:
            self.failures |= {cell: str(error) for cell, _ in heads.owners}
            return heads.empty().zero_()
        if _averages(evictor):
            by_cell = own.view(-1, self.cache_heads, self.layout.longest).mean(dim=1)
            own = by_cell.repeat_interleave(self.cache_heads, dim=0)
        if evictor.accumulates and (self.rules.adds is None or not self.rules.summed):
            own = self._state(ACCUMULATED)[run.segments].add_(own)
        return evictor.score.weigh_segments(heads, own)

    def _over_rows(self, run: Run, heads: RaggedHeads, window: ObservationWindow) -> OfRun:
        """Return the sum of every slot of a run over several rows."""
        policy, score = run.evictor.policy, run.evictor.score
        term, merge = row_term_of(score), score.over_rows(policy.reduce)
        assert term is not None
        named = term.removesuffix("_of_others")
        span = run.start * heads.group, run.stop * heads.group
        own = window.of_span(*span).last(policy.rows(window.queries.shape[1]))
        name: Any = "attn_max" if merge == "max" else named
        arrays = own.queries, heads.keys, heads.values, own.outputs, own.lse
        options = {"softcap": own.softcap, "diagonal": named == term, "segments": heads.segments}
        sums = column_sums.column_sums(*arrays, own.scaling, (name,), **options)[name]
        sums = sums / own.lse.shape[1] if merge == "mean" and own.lse.shape[1] > 1 else sums
        return reduce_group(sums, heads.merge, len(heads.owners))

    def _final(self, run: Run, heads: RaggedHeads, planes: Planes, out: Planes) -> Planes:
        """Return the final scores of a run from the pooled ones, in `out`, which may be these, if they are others."""
        planes = run.evictor.score.refine_segments(heads, planes, out)
        if not _shares(run.evictor):
            return planes
        chunks = run.evictor.policy.heads
        planes = planes[:1] if isinstance(chunks, ChunkHeads) else planes
        cells = len(planes) * len(heads.owners) // self.cache_heads
        shared = mean_over_heads(planes.flatten(0, 1), cells).view(planes.shape)
        if isinstance(chunks, ChunkHeads):
            shared = torch.cat((self._by_chunk(run, heads, chunks.size, shared[0])[None], shared))
        return out.copy_(shared)

    def _by_chunk(self, run: Run, heads: RaggedHeads, size: int, shared: OfRun) -> OfRun:
        """Return the mean score of the candidates of each chunk."""
        ranked = self._ranked[0][run.segments]

        def sums(numbers: Tensor) -> Tensor:
            return F.pad(numbers, (0, -self.layout.longest % size)).unflatten(1, (-1, size)).sum(dim=2, keepdim=True)

        counts = heads.once("pairs of chunks", lambda: sums(ranked.float()).clamp_min(1))
        means = sums(torch.where(ranked, shared, 0)) / counts
        return means.expand(-1, -1, size).flatten(1)[:, : self.layout.longest]

    @property
    def _ranked(self) -> tuple[Bool[Tensor, "segments slots"], Columns]:
        """Which slots have a place by their score, and what stands for the scores of others: inf where a pair is
        protected, -inf where there is none.
        """
        if self.ranked is None:
            columns, held = torch.arange(self.layout.longest, device=self.bases.device), self.held.lengths[:, None]
            fixed = (columns < self.rules.sinks[:, None]) | (columns >= held - self.rules.lasts[:, None])
            self.ranked = ~fixed, torch.where(columns >= held, -torch.inf, torch.inf)
        return self.ranked

    def _best(self, planes: Planes) -> Order:
        """Return the slots of each segment from best to worst; protected ones are the best, oldest first."""
        scores, *unpooled = torch.where(self._ranked[0], planes, self._ranked[1])
        return best_first(scores, unpooled[0] if unpooled else scores)

    def _evict(self, planes: Planes, order: Order | None, newest: Newest) -> None:
        """Evict from every segment what it holds beyond its limit, by the scores of its slots."""
        rules = self.rules
        if max(length + 1 - limit for length, limit in zip(self.lengths, self.layout.limits, strict=True)) > 1:
            return self._evict_several(planes)
        if not rules.all_by_score:
            limits = rules.most_by_position, rules.sinks, rules.lasts, rules.in_place
            self.broken = slots.evict(self.pairs, self.numbers, planes, order, self.held, *limits, newest)
        if rules.some_by_score:
            limits = rules.most, rules.sinks, rules.lasts, rules.by_score
            arrays = self.pairs, self.numbers, planes[0], self._best(planes), self.held
            self.pairs, self.numbers, broken = slots.reorder(*arrays, *limits)
            self.broken = broken if rules.all_by_score else self.broken

    def _evict_several(self, planes: Planes) -> None:
        """`_evict` where a segment holds several pairs too many: all pairs move."""
        rules, longest, best = self.rules, self.layout.longest, self._best(planes)
        places, kept = torch.arange(longest, device=best.device), rules.most.minimum(self.held.lengths)
        in_order = best.masked_fill(places >= kept[:, None], longest - 1).sort(dim=1).values
        order = torch.where(rules.by_score[:, None] != 0, best, in_order)
        self.broken = (torch.where(self._ranked[0], planes[0], 0) * 0).sum(dim=1).isnan()  # 0 times NaN or inf is NaN
        limits = rules.most, rules.sinks * rules.by_score, rules.lasts * rules.by_score, torch.ones_like(rules.by_score)
        arrays = self.pairs, self.numbers, planes[0], order, self.held
        self.pairs, self.numbers, _ = slots.reorder(*arrays, *limits)

    @property
    def bytes_held(self) -> list[int]:
        """Bytes of the pairs of every cell, their positions and states."""
        pair_bytes, held = 2 * self.pairs.shape[2] * self.pairs.itemsize, [0] * len(self.evictors)
        for (cell, _), length in zip(self.layout.owners, self.lengths, strict=True):
            held[cell] += length
        return [pairs * (pair_bytes + 4 * (1 + len(self._states_of(cell)))) for cell, pairs in enumerate(held)]

    def layer_of(self, cell: int) -> LayerCache:
        """Return a copy of the pairs of one cell, in the order of its cache."""
        orders = {}
        for segment in self.layout.segments_of(cell):
            positions = self.numbers[0, segment, : self.lengths[segment]]
            in_order = torch.arange(len(positions), device=positions.device)
            orders[segment] = positions.argsort() if self.layout.in_place[segment] else in_order
        slots = torch.cat([self.layout.starts[segment] + order for segment, order in orders.items()])
        keys, values = self.pairs.index_select(1, slots)

        def ordered(numbers: Tensor) -> Tensor:
            return torch.cat([numbers[segment][order] for segment, order in orders.items()])

        return LayerCache(
            self.index,
            self.query_heads,
            keys,
            values,
            ordered(self.numbers[0]),
            (0, *accumulate(map(len, orders.values()))),
            state={name: ordered(self._state(name)) for name in self._states_of(cell)},
        )

    def rows_of(self, cell: int) -> ObservationWindow | None:
        """Return the records of the tokens of a cell since the last eviction."""
        if not self.rows:
            return None
        group = self.query_heads // self.cache_heads
        return joined(self.rows).at(query_heads_of(self.layout.segments_of(cell), group))

    def _of_segments(self, window: Sequence[ObservationWindow]) -> ObservationWindow:
        """Return the rows of all cells in the order of the segments."""
        every = replace(
            window[0], **{name: torch.cat([part.arrays[name] for part in window]) for name in window[0].arrays}
        )
        heads = [cell * self.cache_heads + head for cell, head in self.layout.owners]
        return every.at(query_heads_of(heads, self.query_heads // self.cache_heads))
