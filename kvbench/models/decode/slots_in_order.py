"""Slots in the order of a cache: any score and policy, after any number of tokens; what is kept moves to the front.
Where heads allow it, kernels let the newest pair take the slot of the worst one instead: these slots are in no order.

Heads of several cells are scored and ranked as one layer where they hold equally many pairs and their score says that
it compares no heads (`Score.head_by_head`).
"""

import sys
from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import groupby
from operator import sub

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kvbench.cache.kernels.choice import refining_kernels_of
from kvbench.cache.kv_cache import LayerCache, Window, joined, readers
from kvbench.eviction.allocation.heads import ChunkHeads, SharedHeads
from kvbench.eviction.allocation.heads import Heads as HeadAllocation
from kvbench.eviction.incremental import ACCUMULATED, IncrementalEviction
from kvbench.eviction.ranking import best_first, mean_over_heads
from kvbench.eviction.scores.by_kernels import Planes, Ragged, finishes
from kvbench.eviction.scores.random import Random
from kvbench.eviction.scores.recency import Recency
from kvbench.eviction.scores.triattention import HeadQueries, TriAttention
from kvbench.models.decode.slots import Fresh, Reading, Run, SlotLayer, averages_heads, not_finite
from kvbench.support.errors import UserError

Columns = Float[Tensor, "segments slots"]
Mask = Bool[Tensor, "segments slots"]
Order = Int[Tensor, "segments slots"]
OfRun = Float[Tensor, "run slots"]
"""Of the segments of a run."""


class SlotsInOrder(SlotLayer):
    """Cells that evict after the same tokens. Unless kernels evict after every token, they also have the same
    `policy.slot_order` and kind of `policy.state`, and their scores all read rows or all do not.
    """

    def __init__(
        self,
        layers: Sequence[LayerCache],
        steppings: Sequence[IncrementalEviction],
        reading: Reading,
        rows: Sequence[Window | None],
        in_place: Sequence[bool],
    ) -> None:
        """rows: what the tokens of each cell saw that were read since its last eviction. in_place: the cells in which
        the newest pair takes the slot of the evicted one; only with kernels.
        """
        super().__init__(layers, steppings, reading)
        self._rows = [] if rows[0] is None else [self._in_order([part for part in rows if part is not None])]
        self._most_rows = max(stepping.policy.rows(sys.maxsize) for stepping in steppings)
        self._queries: dict[int, HeadQueries] = {}
        owned = [steppings[cell] for cell, _ in self.owners]
        policies = [own.policy for own in owned]
        self._sinks, self._lasts = (
            self._numbers([getattr(policy, name) for policy in policies]).int() for name in ("sinks", "last")
        )
        self._most = self._numbers(self.limits).int()
        by_score = [policy.slot_order == "score" for policy in policies]
        self._some_move, self._all_move = any(by_score), all(by_score)
        self._moves = self._numbers([int(moves) for moves in by_score]).int()
        # where pairs move by score, none takes the slot of another
        self._most_elsewhere = self._most.where(self._moves == 0, self._longest)
        self._in_place = [in_place[cell] for cell, _ in self.owners]
        self._takes_slot = self._numbers([int(takes) for takes in self._in_place]).int()
        self._ragged = max((run.stop for run in self.runs if not run.dense), default=0)  # the first segments
        pools = [policy.pool for policy in policies]
        ties = any(isinstance(policy.heads, ChunkHeads) for policy in policies)  # which unpooled scores break
        self._pools = ties or any(pool is not None for pool in pools)
        apart = [0 if own.policy.pool is None or own.score.whole else own.policy.last for own in owned]
        sizes = [1 if pool is None else pool.size for pool in pools]
        means = [int(pool is not None and pool.kind == "avg") for pool in pools]
        self._apart, self._sizes, self._means = (self._numbers(part).int() for part in (apart, sizes, means))
        self._sorts = any(takes and pool is not None for takes, pool in zip(self._in_place, pools, strict=True))

    def _scoring(self, stepping: IncrementalEviction, cell: int) -> Hashable:
        policy, score = stepping.policy, stepping.score
        if self._is_sum(stepping):
            return stepping.accumulates
        compares = type(policy.heads).chooses is not HeadAllocation.chooses and policy.layers.kind != "global"
        compares = compares or averages_heads(stepping) or not score.head_by_head
        return policy, score, cell if compares and self._dense(stepping) else None

    def _dense(self, stepping: IncrementalEviction) -> bool:
        """All but the scores of kernels, with policies that `_of_ragged` supports."""
        policy, score = stepping.policy, stepping.score
        by_kernels = self._term(stepping) is not None or self._finishes(stepping) or self._draws(stepping)
        any_order = score.any_order and (policy.reduce != "observed_attention" or self.reading.every == 1)
        alike = isinstance(stepping.capacity, int) or len(set(stepping.capacity[self.index])) == 1
        supported = by_kernels and alike if averages_heads(stepping) else by_kernels or any_order
        chooses = (HeadAllocation.chooses, SharedHeads.chooses, ChunkHeads.chooses)
        supported = supported and (type(policy.heads).chooses in chooses or policy.layers.kind == "global")
        return self.decode is None or not supported

    def _finishes(self, stepping: IncrementalEviction) -> bool:
        """Whether `Ragged` computes the scores of a cell."""
        return self._row_sums is not None and finishes(stepping.score)

    def _draws(self, stepping: IncrementalEviction) -> bool:
        """Whether the scores of a cell depend on nothing but the lengths of its heads."""
        return self._row_sums is not None and type(stepping.score) is Random

    def _shares(self, stepping: IncrementalEviction) -> bool:
        """Whether the heads of a cell have one mean score, or one for each chunk."""
        return isinstance(stepping.policy.heads, SharedHeads | ChunkHeads) and stepping.policy.layers.kind != "global"

    def _is_sum(self, stepping: IncrementalEviction) -> bool:
        """Whether nothing but pooling follows the `_sums` of a cell."""
        more = self._finishes(stepping) or averages_heads(stepping) or self._shares(stepping)
        return self._term(stepping) is not None and not (more or self._dense(stepping))

    def _room(self, length: int, limit: int) -> int:
        new, left, every = self.reading.new, self.reading.left, self.reading.every
        return length + left if every is None else min(max(length, limit) + every - 1 + new, length + left)

    def _order_of(self, segment: int) -> Int[Tensor, "_"]:
        length = self.lengths[segment]
        if self._in_place[segment]:
            return self.positions[segment, :length].argsort()
        return torch.arange(length, device=self.device)

    @cached_property
    def _observes(self) -> bool:
        return self.reading.every is not None and any(run.stepping.score.inputs.window for run in self.runs)

    def _evict(self, window: Window | None, token: int, fresh: Fresh, due: bool) -> None:
        if window is not None and self._observes:
            self._rows.append(window)
            del self._rows[: -self._most_rows]
        limits = self.limits if due else self.grown
        if due:
            self._keep_best(fresh)
            self._rows.clear()
        lengths = [min(length, limit) for length, limit in zip(self.grown, limits, strict=True)]
        if lengths != self.lengths:
            self.lengths = lengths
            self._see_lengths()

    def _see_lengths(self) -> None:
        super()._see_lengths()
        self._fills: tuple[Mask, Columns] | None = None
        self._drawn: dict[int, OfRun] = {}
        self._in_chunks: dict[int, tuple[Mask, Columns]] = {}

    @property
    def _fill(self) -> tuple[Mask, Columns]:
        """Which slots have a place by their score, and what stands for the scores of others: inf where a pair is
        protected, -inf where there is none.
        """
        if self._fills is None:
            columns, held = torch.arange(self._longest, device=self.device), self._held[:, None]
            fixed = (columns < self._sinks[:, None]) | (columns >= held - self._lasts[:, None])
            self._fills = ~fixed, torch.where(columns >= held, -torch.inf, torch.inf)
        return self._fills

    def _keep_best(self, fresh: Fresh) -> None:
        """Evict from every segment what it holds beyond its limit; without kernels, move what it keeps to its front."""
        excess = max(map(sub, self.grown, self.limits))
        if not (excess > 0 or self._some_move or ACCUMULATED in self.states):
            return
        order = self._by_position if self._sorts else None
        planes = self._scores(joined(self._rows) if self._observes else None, order, fresh)
        if self._kernels is None or (excess > 1 and not self._all_move):
            self.broken = not_finite(torch.where(self._fill[0], planes[0], 0))
            if excess > 0 or self._some_move:
                self._move(self._best(planes), list(map(min, self.grown, self.limits)))
            return
        if not self._all_move:
            arrays = self.pairs, self._numbers_of_slots, planes, order, self._segments
            limits = self._most_elsewhere, self._sinks, self._lasts, self._takes_slot
            self.broken = self._kernels.evict(*arrays, *limits, fresh)
        if self._some_move:
            arrays = self.pairs, self._numbers_of_slots, planes[0], self._best(planes), self._segments
            limits = self._most, self._sinks, self._lasts, self._moves
            self.pairs, self._numbers_of_slots, broken = self._kernels.reorder(*arrays, *limits)
            self.broken = broken if self._all_move else self.broken
            self._name_numbers()

    @property
    def _by_position(self) -> Order:
        """The slots of each segment in the order that pools follow: of positions, or as they are if moved by score."""
        order = self.positions.argsort(dim=1)
        if not self._some_move:
            return order
        return torch.where(self._moves[:, None] != 0, torch.arange(self._longest, device=self.device), order)

    def _best(self, planes: Planes) -> Order:
        """The slots of each segment from best to worst; protected ones are the best, oldest first."""
        ranks, fill = self._fill
        scores, *unpooled = torch.where(ranks, planes, fill)
        return best_first(scores, unpooled[0] if unpooled else scores)

    def _move(self, order: Order, kept: list[int]) -> None:
        """Move the `kept` first slots of each segment in `order`, from best to worst, to its front."""
        most, counts = max(kept), self._numbers(kept)[:, None]
        places = torch.arange(most, device=self.device)
        order = order[:, :most].masked_fill(places >= counts, self._longest)
        if self._some_move:  # first tokens, others from best to worst, newest
            newest = order >= (self._held - self._lasts)[:, None]
            ranks = torch.where(self._moves[:, None] != 0, newest, order)
            order = order.gather(1, ranks.argsort(dim=1, stable=True))
        else:
            order = order.sort(dim=1).values
        chosen = torch.nonzero_static(places < counts, size=sum(kept))
        bases = self._bases.index_select(0, chosen[:, 0])
        sources = bases + order.flatten().index_select(0, chosen[:, 0] * most + chosen[:, 1])
        self.pairs.index_copy_(1, bases + chosen[:, 1], self.pairs.index_select(1, sources))
        index = order.clamp_max(self._longest - 1).expand(len(self._numbers_of_slots), -1, -1)
        self._numbers_of_slots[:, :, :most] = self._numbers_of_slots.gather(2, index)

    def _scores(self, rows: Window | None, order: Order | None, fresh: Fresh) -> Planes:
        """The final score of every slot; and the same without pooling, if any is pooled along `order`. Any number where
        a pair is protected or there is none.
        """
        ragged = None if order is None else order[: self._ragged]
        parts = [self._of_ragged(rows, ragged, fresh)] if self._ragged else []
        return _side_by_side(parts + [self._of_dense(run, rows) for run in self.runs if run.dense])

    def _of_dense(self, run: Run, rows: Window | None) -> Planes:
        """`_scores` of segments of equal length."""
        try:
            layer, _, ranking = run.stepping.rank(self._layer(run), self._seen(run, rows))
        except UserError as error:
            return self._failed(run, error)[None]
        if run.stepping.accumulates:
            length = self.grown[run.start]
            self.states[ACCUMULATED][run.segments, :length] = layer.state[ACCUMULATED].view(-1, length)
        pooled = ranking.unpooled is not ranking.scores
        planes = torch.stack((ranking.scores, ranking.unpooled)) if pooled else ranking.scores[None]
        return F.pad(planes, (ranking.first, self._longest - ranking.first - ranking.candidates))

    def _of_ragged(self, rows: Window | None, order: Order | None, fresh: Fresh) -> Planes:
        """`_scores` of segments of different lengths."""
        runs, sums, finishing = [run for run in self.runs if not run.dense], self._sums(rows), dict[int, Ragged]()
        for run in runs:
            if self._finishes(run.stepping):
                policy, score = run.stepping.policy, run.stepping.score
                last = self._held[run.segments] - 1 if policy.positions == "cache" else fresh[0, 0]
                finishing[run.start] = Ragged(self._layer(run), score, policy, last)
        raw = [self._raw(run, rows, sums, finishing.get(run.start)) for run in runs]
        planes = self._pooled(raw[0] if len(raw) == 1 else torch.cat(raw), order)
        if len(runs) == 1:  # these may be its running scores, which stay
            return self._final(runs[0], planes, finishing.get(runs[0].start), torch.empty_like(planes))
        for run in runs:
            own = planes[:, run.segments]
            self._final(run, own, finishing.get(run.start), own)
        return planes

    def _raw(self, run: Run, rows: Window | None, sums: Columns | None, ragged: Ragged | None) -> OfRun:
        """What is pooled of a run, after adding to the running scores."""
        stepping, own = run.stepping, None if sums is None else sums[run.segments]
        try:
            if ragged is not None:
                own = ragged.raw(own, self._queries_of(run))
            elif self._draws(stepping):
                own = self._random(run)
            elif type(stepping.score) is Recency:
                own = self.positions[run.segments].float()
            elif self._term(stepping) is None:
                own = stepping.raw(self._layer(run), self._seen(run, rows), run.stop - run.start)
        except UserError as error:
            return self._failed(run, error)
        assert own is not None
        if averages_heads(stepping):
            own = own.view(-1, self.cache_heads, self._longest).mean(dim=1).repeat_interleave(self.cache_heads, dim=0)
        if stepping.accumulates and (self._adds is None or self._term(stepping) is None):
            own = self.states[ACCUMULATED][run.segments].add_(own)
        return own if ragged is None else ragged.before_pool(own)

    def _pooled(self, plain: Columns, order: Order | None) -> Planes:
        """With pooling along `order` and without; the latter alone if nothing is pooled."""
        if not self._pools:
            return plain[None]
        settings = self._held, self._apart, self._sizes, self._means
        return refining_kernels_of("triton").pooled(plain, order, *settings)

    def _final(self, run: Run, planes: Planes, ragged: Ragged | None, out: Planes) -> Planes:
        """The final scores of a run from the pooled ones, in `out`, which may be these, if they are others."""
        planes = planes if ragged is None else ragged.final(planes, out)
        if not self._shares(run.stepping):
            return planes
        chunked = isinstance(run.stepping.policy.heads, ChunkHeads)
        planes = planes[:1] if chunked else planes
        cells = len(planes) * (run.stop - run.start) // self.cache_heads
        shared = mean_over_heads(planes.flatten(0, 1), cells).view(planes.shape)
        return out.copy_(torch.cat((self._by_chunk(run, shared[0])[None], shared)) if chunked else shared)

    def _by_chunk(self, run: Run, shared: OfRun) -> OfRun:
        """The mean score of the candidates of each chunk."""
        policy = run.stepping.policy
        assert isinstance(policy.heads, ChunkHeads)
        size = policy.heads.size

        def sums(numbers: Tensor) -> Tensor:
            return F.pad(numbers, (0, -self._longest % size)).unflatten(1, (-1, size)).sum(dim=2, keepdim=True)

        if run.start not in self._in_chunks:
            columns = torch.arange(self._longest, device=self.device)
            candidates = (columns >= policy.sinks) & (columns < self._held[run.segments, None] - policy.last)
            self._in_chunks[run.start] = candidates, sums(candidates.float()).clamp_min(1)
        candidates, counts = self._in_chunks[run.start]
        means = sums(torch.where(candidates, shared, 0)) / counts
        return means.expand(-1, -1, size).flatten(1)[:, : self._longest]

    def _queries_of(self, run: Run) -> HeadQueries | None:
        """What the score of a run reads of the queries of its heads, the same in all steps."""
        score = run.stepping.score
        if isinstance(score, TriAttention) and run.start not in self._queries:
            self._queries[run.start] = score.of_heads(self._layer(run))
        return self._queries.get(run.start)

    def _random(self, run: Run) -> OfRun:
        """Random scores, which are drawn on the CPU for heads of equal length of a cell."""
        if run.start not in self._drawn:
            assert isinstance(run.stepping.score, Random)
            drawn = torch.zeros(run.stop - run.start, self._longest)
            numbers = range(run.start, run.stop)
            for (_, length), group in groupby(numbers, lambda number: (self.owners[number][0], self.grown[number])):
                rows = [number - run.start for number in group]
                drawn[rows, :length] = run.stepping.score.drawn(self.index, len(rows), length)
            self._drawn[run.start] = drawn.to(self.device, non_blocking=True)
        return self._drawn[run.start]

    def _seen(self, run: Run, rows: Window | None) -> Window | None:
        """What the newest tokens saw of a run, if its score reads that."""
        if rows is None or not run.stepping.score.inputs.window:
            return None
        group = self.query_heads // self.cache_heads
        return rows.of_span(run.start * group, run.stop * group).last(run.stepping.policy.rows(rows.queries.shape[1]))

    def _failed(self, run: Run, error: UserError) -> OfRun:
        """Scores that stand for those of cells that could not be scored."""
        self.failures |= {cell: str(error) for cell, _ in self.owners[run.segments]}
        return self.pairs.new_zeros(run.stop - run.start, self._longest, dtype=torch.float32)

    def rows_of(self, cell: int) -> Window | None:
        if not self._rows:
            return None
        group = self.query_heads // self.cache_heads
        return _of_heads(joined(self._rows), readers(self._segments_of(cell), group))

    def _in_order(self, rows: Sequence[Window]) -> Window:
        """The rows of all cells in the order of the segments."""
        arrays = [torch.cat([getattr(part, name) for part in rows]) for name in ("queries", "outputs", "lse")]
        every = replace(rows[0], queries=arrays[0], outputs=arrays[1], lse=arrays[2])
        heads = [cell * self.cache_heads + head for cell, head in self.owners]
        return _of_heads(every, readers(heads, self.query_heads // self.cache_heads))


def _of_heads(rows: Window, heads: list[int]) -> Window:
    return replace(rows, queries=rows.queries[heads], outputs=rows.outputs[heads], lse=rows.lse[heads])


def _side_by_side(parts: Sequence[Float[Tensor, "_ _ slots"]]) -> Float[Tensor, "_ _ slots"]:
    """The scores of all segments; where some are not pooled, these are the same with and without."""
    planes = max(map(len, parts))
    return parts[0] if len(parts) == 1 else torch.cat([part.expand(planes, -1, -1) for part in parts], dim=1)
