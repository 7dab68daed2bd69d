"""Slots in the order of a cache: any score and policy, after any number of tokens; what is kept moves to the front.

Heads of several cells are scored and ranked as one layer where they hold equally many pairs and their score says that
it compares no heads (`Score.head_by_head`).
"""

import sys
from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import cached_property

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kvbench.cache.kv_cache import LayerCache, Window, joined, readers
from kvbench.cache.shapes import Ranked
from kvbench.eviction.allocation.heads import Heads as HeadAllocation
from kvbench.eviction.allocation.heads import SharedHeads
from kvbench.eviction.incremental import ACCUMULATED, IncrementalEviction
from kvbench.eviction.ranking import best_first, mean_over_heads
from kvbench.eviction.scores.by_kernels import Ragged, finishes
from kvbench.models.decode.slots import Fresh, Reading, Run, SlotLayer, not_finite
from kvbench.support.errors import UserError

Columns = Float[Tensor, "segments slots"]
OfRun = Float[Tensor, "run slots"]
"""Of the segments of a run."""


class SlotsInOrder(SlotLayer):
    """Cells that evict after the same tokens, of the same `policy.state` and `policy.slot_order`, whose scores all read
    rows or all do not.
    """

    def _scoring(self, stepping: IncrementalEviction, cell: int) -> Hashable:
        policy, score = stepping.policy, stepping.score
        compares = type(policy.heads).chooses is not HeadAllocation.chooses and policy.layers.kind != "global"
        compares = compares or policy.group_of(score.group) == "layer_mean" or not score.head_by_head
        return policy, score, cell if compares and self._dense(stepping) else None

    def _dense(self, stepping: IncrementalEviction) -> bool:
        """All but the scores of kernels, with policies that `_ranked_ragged` supports."""
        policy, score = stepping.policy, stepping.score
        supported = score.any_order and policy.reduce != "observed_attention"
        supported = supported or self._term(stepping) is not None or self._finishes(stepping)
        supported = supported and policy.group_of(score.group) != "layer_mean"
        chooses = type(policy.heads).chooses
        supported = supported and (
            chooses in (HeadAllocation.chooses, SharedHeads.chooses) or policy.layers.kind == "global"
        )
        return self.decode is None or not supported

    def _finishes(self, stepping: IncrementalEviction) -> bool:
        """Whether `Ragged` finishes the scores of a cell."""
        return self._row_sums is not None and finishes(stepping.score)

    def _room(self, length: int, limit: int) -> int:
        new, left, every = self.reading.new, self.reading.left, self.reading.every
        return length + left if every is None else min(max(length, limit) + every - 1 + new, length + left)

    def _order_of(self, segment: int) -> Int[Tensor, "_"]:
        return torch.arange(self.lengths[segment], device=self.device)

    def __init__(
        self,
        layers: Sequence[LayerCache],
        steppings: Sequence[IncrementalEviction],
        reading: Reading,
        rows: Sequence[Window | None],
    ) -> None:
        """rows: what the tokens of each cell saw that were read since its last eviction."""
        super().__init__(layers, steppings, reading)
        self._rows = [] if rows[0] is None else [self._in_order([part for part in rows if part is not None])]
        self._most_rows = max(stepping.policy.rows(sys.maxsize) for stepping in steppings)
        policies = [steppings[cell].policy for cell, _ in self.owners]
        self._sinks, self._lasts = (
            self._numbers([getattr(policy, name) for policy in policies]).int() for name in ("sinks", "last")
        )
        self._kept: tuple[list[int], Tensor] = [], self._sinks

    @cached_property
    def _observes(self) -> bool:
        return self.reading.every is not None and any(run.stepping.score.inputs.window for run in self.runs)

    def _evict(self, window: Window | None, token: int, fresh: Fresh, due: bool) -> None:
        if window is not None and self._observes:
            self._rows.append(window)
            del self._rows[: -self._most_rows]
        limits = self.limits if due else self.grown
        if due:
            self._keep_best()
            self._rows.clear()
        lengths = [min(length, limit) for length, limit in zip(self.grown, limits, strict=True)]
        if lengths != self.lengths:
            self.lengths = lengths
            self._see_lengths()

    def _see_lengths(self) -> None:
        super()._see_lengths()
        self._masks: dict[tuple[int, int, int], Tensor] = {}
        self._fills: Columns | None = None

    def _behind(self, run: Run, last: int, first: int = 0) -> Bool[Tensor, "run slots"]:
        """The newest `last` pairs of each segment of a run but the `first` ones, and all slots behind them."""
        if (run.start, last, first) not in self._masks:
            columns = torch.arange(self._longest, device=self.device)
            bounds = self._held[run.segments, None] - last
            self._masks[run.start, last, first] = columns >= (bounds.clamp_min(first) if first else bounds)
        return self._masks[run.start, last, first]

    @property
    def _fill(self) -> Columns:
        """What makes scores order all slots: inf for protected ones, -inf for free ones, 0 for all others."""
        if self._fills is None:
            columns = torch.arange(self._longest, device=self.device)
            newest = columns >= (self._held - self._lasts)[:, None]
            protected = (newest | (columns < self._sinks[:, None])).float()
            free = columns >= self._held[:, None]
            self._fills = (protected / (1 - protected)).masked_fill(free, -torch.inf)
        return self._fills

    def _keep_best(self) -> None:
        """Move what every segment keeps to its front."""
        policy, group = self.steppings[0].policy, self.query_heads // self.cache_heads
        by_score = policy.slot_order == "score"
        excess = max(length - limit for length, limit in zip(self.grown, self.limits, strict=True))
        if not (excess > 0 or by_score or ACCUMULATED in self.states):
            return
        in_kernels = self._kernels is not None and (by_score or excess == 1)
        rows = joined(self._rows) if self._observes else None
        sums = self._sums(rows)
        parts = [self._ranked(run, rows, sums, group, in_kernels) for run in self.runs]
        scores = unpooled = parts[0][0] if len(parts) == 1 else torch.cat([part[0] for part in parts])
        if any(part[0] is not part[1] for part in parts):
            unpooled = parts[0][1] if len(parts) == 1 else torch.cat([part[1] for part in parts])
        kept = [min(length, limit) for length, limit in zip(self.grown, self.limits, strict=True)]
        if in_kernels:
            self._keep_by_kernels(scores, unpooled, kept, by_score)
            return
        self.broken = torch.cat([part[2] for part in parts])
        if not (excess > 0 or by_score):
            return
        most, counts = max(kept), self._numbers(kept)[:, None]
        places = torch.arange(most, device=self.device)
        order = best_first(scores, unpooled)[:, :most].masked_fill(places >= counts, self._longest)
        if by_score:  # first tokens, others from best to worst, newest
            newest = order >= (self._held - self._lasts)[:, None]
            order = order.gather(1, newest.int().argsort(dim=1, stable=True))
        else:
            order = order.sort(dim=1).values
        chosen = torch.nonzero_static(places < counts, size=sum(kept))
        bases = self._bases.index_select(0, chosen[:, 0])
        sources = bases + order.flatten().index_select(0, chosen[:, 0] * most + chosen[:, 1])
        self.pairs.index_copy_(1, bases + chosen[:, 1], self.pairs.index_select(1, sources))
        index = order.clamp_max(self._longest - 1).expand(len(self._numbers_of_slots), -1, -1)
        self._numbers_of_slots[:, :, :most] = self._numbers_of_slots.gather(2, index)

    def _keep_by_kernels(self, scores: Columns, unpooled: Columns, kept: list[int], by_score: bool) -> None:
        """`_keep_best` of segments that are at most one pair too long."""
        assert self._kernels is not None
        if self._kept[0] != kept:
            self._kept = kept, self._numbers(kept).int()
        limits = self._kept[1], self._sinks, self._lasts
        if by_score:
            filled = scores + self._fill
            order = best_first(filled, filled if unpooled is scores else unpooled + self._fill)
            moved = self._kernels.reorder(self.pairs, self._numbers_of_slots, scores, order, self._segments, *limits)
            self.pairs, self._numbers_of_slots, self.broken = moved
            self._name_numbers()
        else:
            ties = None if unpooled is scores else unpooled
            arrays = self.pairs, self._numbers_of_slots, scores, ties, self._segments
            self.broken = self._kernels.evict_in_order(*arrays, *limits)

    def _ranked(
        self, run: Run, rows: Window | None, sums: Columns | None, group: int, bare: bool
    ) -> tuple[OfRun, OfRun, Tensor]:
        """Final scores of a run and the same without pooling: inf where a pair is protected, -inf where there is none;
        if `bare`, any number. Then, unless `bare`, which segments have a score that is NaN or inf.

        sums: the scores of all segments, where a kernel has computed them.
        """
        heads, length, stepping = run.stop - run.start, self.grown[run.start], run.stepping
        try:
            observed = None if rows is None else rows.of_span(run.start * group, run.stop * group)
            if not run.dense:
                return self._ranked_ragged(run, observed, sums, bare)
            layer, _, ranking = stepping.rank(self._layer(run), observed)
        except UserError as error:
            self.failures |= {cell: str(error) for cell, _ in self.owners[run.segments]}
            empty = self.pairs.new_full((heads, self._longest), -torch.inf, dtype=torch.float32)
            return empty, empty, torch.zeros(heads, dtype=torch.bool, device=self.device)
        if ACCUMULATED in self.states:
            self.states[ACCUMULATED][run.segments, :length] = layer.state[ACCUMULATED].view(heads, length)

        def spread(scores: Ranked) -> OfRun:
            behind = length - ranking.first - ranking.candidates
            if bare:
                return F.pad(scores, (ranking.first, behind + self._longest - length))
            protected = F.pad(scores, (ranking.first, behind), value=torch.inf)
            return F.pad(protected, (0, self._longest - length), value=-torch.inf)

        scores = spread(ranking.scores)
        unpooled = scores if ranking.unpooled is ranking.scores else spread(ranking.unpooled)
        return scores, unpooled, scores if bare else not_finite(ranking.scores)

    def _ranked_ragged(
        self, run: Run, rows: Window | None, sums: Columns | None, bare: bool
    ) -> tuple[OfRun, OfRun, Tensor]:
        """`_ranked` for heads of different lengths."""
        policy, heads, term = run.stepping.policy, run.stop - run.start, self._term(run.stepping)
        sums = sums if sums is None or len(self.runs) == 1 else sums[run.segments]
        ragged = None
        if self._finishes(run.stepping):
            masks = self._behind(run, 0), self._behind(run, 1, 1)
            ragged = Ragged(self._layer(run), run.stepping.score, policy, *masks)
            scores = ragged.raw(sums)
        elif term is not None:
            assert sums is not None
            scores = sums
        else:
            rows = None if rows is None else rows.last(policy.rows(rows.queries.shape[1]))
            scores = run.stepping.raw(self._layer(run), rows, heads)
        if ACCUMULATED in self.states and (self._adds is None or term is None):
            scores = self.states[ACCUMULATED][run.segments].add_(scores)
        shares = type(policy.heads) is SharedHeads and policy.layers.kind != "global"

        def spread(scores: OfRun) -> OfRun:
            scores = mean_over_heads(scores, heads // self.cache_heads) if shares else scores
            return scores if bare else scores.masked_fill(protected, torch.inf).masked_fill(free, -torch.inf)

        protected = free = scores
        if not bare:
            columns = torch.arange(self._longest, device=self.device)
            protected, free = self._behind(run, policy.last) | (columns < policy.sinks), self._behind(run, 0)
        plain = scores
        if ragged is not None:
            plain = ragged.shaped(scores, None, self._behind(run, 0))
        pooled = unpooled = spread(plain)
        if policy.pool is not None:
            newest = self._behind(run, policy.last)
            if ragged is not None:
                pooled = spread(ragged.shaped(scores, policy.pool, newest))
            else:
                lowest = -torch.inf if policy.pool.kind == "max" else 0
                pooled = spread(policy.pool(scores.masked_fill(newest, lowest)))
        return pooled, unpooled, scores if bare else not_finite(plain.masked_fill(protected, 0))

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
