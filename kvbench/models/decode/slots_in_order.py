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
from jaxtyping import Float, Int
from torch import Tensor

from kvbench.cache.kv_cache import LayerCache, Window, joined, readers
from kvbench.cache.shapes import Ranked
from kvbench.eviction.allocation.heads import Heads as HeadAllocation
from kvbench.eviction.allocation.heads import SharedHeads
from kvbench.eviction.incremental import ACCUMULATED, IncrementalEviction
from kvbench.eviction.ranking import best_first, mean_over_heads
from kvbench.models.decode.slots import Fresh, NewPairs, Reading, Run, SlotLayer, not_finite
from kvbench.support.errors import UserError

Columns = Float[Tensor, "segments slots"]


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
        supported = supported and policy.group_of(score.group) != "layer_mean"
        chooses = type(policy.heads).chooses
        supported = supported and (
            chooses in (HeadAllocation.chooses, SharedHeads.chooses) or policy.layers.kind == "global"
        )
        return self.decode is None or not supported

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

    @cached_property
    def _observes(self) -> bool:
        return self.reading.every is not None and any(run.stepping.score.inputs.window for run in self.runs)

    def _evict(self, window: Window | None, new: NewPairs, token: int, fresh: Fresh, due: bool) -> None:
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

    def _keep_best(self) -> None:
        """Move what every segment keeps to its front."""
        policy, group = self.steppings[0].policy, self.query_heads // self.cache_heads
        by_score = policy.slot_order == "score"
        full = any(length > limit for length, limit in zip(self.grown, self.limits, strict=True))
        if not (full or by_score or ACCUMULATED in self.states):
            return
        rows = joined(self._rows) if self._observes else None
        parts = [self._ranked(run, rows, group) for run in self.runs]
        scores, unpooled = (parts[0][at] if len(parts) == 1 else torch.cat([p[at] for p in parts]) for at in (0, 1))
        self.broken = torch.cat([part[2] for part in parts])
        if not (full or by_score):
            return
        alike = all(part[0] is part[1] for part in parts)
        kept = [min(length, limit) for length, limit in zip(self.grown, self.limits, strict=True)]
        most, counts = max(kept), self._numbers(kept)[:, None]
        places = torch.arange(most, device=self.device)
        order = best_first(scores, scores if alike else unpooled)[:, :most].masked_fill(places >= counts, self._longest)
        if by_score:  # first tokens, others from best to worst, newest
            lasts = self._numbers([self.steppings[cell].policy.last for cell, _ in self.owners])
            newest = order >= (self._held - lasts)[:, None]
            order = order.gather(1, newest.int().argsort(dim=1, stable=True))
        else:
            order = order.sort(dim=1).values
        chosen = torch.nonzero_static(places < counts, size=sum(kept))
        bases = self._bases.index_select(0, chosen[:, 0])
        sources = bases + order.flatten().index_select(0, chosen[:, 0] * most + chosen[:, 1])
        self.pairs.index_copy_(1, bases + chosen[:, 1], self.pairs.index_select(1, sources))
        index = order.clamp_max(self._longest - 1).expand(len(self._numbers_of_slots), -1, -1)
        self._numbers_of_slots[:, :, :most] = self._numbers_of_slots.gather(2, index)

    def _ranked(self, run: Run, rows: Window | None, group: int) -> tuple[Columns, Columns, Tensor]:
        """Final scores of a run and the same without pooling: inf where a pair is protected, -inf where there is none.
        Then which segments have a score that is NaN or inf.
        """
        heads, length, stepping = run.stop - run.start, self.grown[run.start], run.stepping
        try:
            observed = None if rows is None else rows.of_span(run.start * group, run.stop * group)
            if not run.dense:
                return self._ranked_ragged(run, observed)
            layer, _, ranking = stepping.rank(self._layer(run), observed)
        except UserError as error:
            self.failures |= {cell: str(error) for cell, _ in self.owners[run.segments]}
            empty = self.pairs.new_full((heads, self._longest), -torch.inf, dtype=torch.float32)
            return empty, empty, torch.zeros(heads, dtype=torch.bool, device=self.device)
        if ACCUMULATED in self.states:
            self.states[ACCUMULATED][run.segments, :length] = layer.state[ACCUMULATED].view(heads, length)

        def spread(scores: Ranked) -> Columns:
            behind = length - ranking.first - ranking.candidates
            protected = F.pad(scores, (ranking.first, behind), value=torch.inf)
            return F.pad(protected, (0, self._longest - length), value=-torch.inf)

        scores = spread(ranking.scores)
        unpooled = scores if ranking.unpooled is ranking.scores else spread(ranking.unpooled)
        return scores, unpooled, not_finite(ranking.scores)

    def _ranked_ragged(self, run: Run, rows: Window | None) -> tuple[Columns, Columns, Tensor]:
        """`_ranked` for heads of different lengths."""
        policy, heads = run.stepping.policy, run.stop - run.start
        rows = None if rows is None else rows.last(policy.rows(rows.queries.shape[1]))
        scores = run.stepping.raw(self._layer(run), rows, heads)
        if ACCUMULATED in self.states:
            scores = self.states[ACCUMULATED][run.segments].add_(scores)
        columns, held = torch.arange(self._longest, device=self.device), self._held[run.segments, None]
        newest, free = columns >= held - policy.last, columns >= held
        protected = newest | (columns < policy.sinks)
        shares = type(policy.heads) is SharedHeads and policy.layers.kind != "global"

        def spread(scores: Columns) -> Columns:
            scores = mean_over_heads(scores, heads // self.cache_heads) if shares else scores
            return scores.masked_fill(protected, torch.inf).masked_fill(free, -torch.inf)

        pooled = unpooled = spread(scores)
        if policy.pool is not None:
            pooled = spread(policy.pool(scores.masked_fill(newest, -torch.inf if policy.pool.kind == "max" else 0)))
        return pooled, unpooled, not_finite(scores.masked_fill(protected, 0))

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
