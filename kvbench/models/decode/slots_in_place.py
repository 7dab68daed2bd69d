"""Slots of cells that evict a pair after every token: the newest pair takes the slot of the evicted one.

Slots are thus in no order, except that protected first tokens stay in front and the newest pair comes last; `positions`
tells the order where a pool needs it.
"""

from collections.abc import Hashable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kvbench.cache.kv_cache import LayerCache, Window
from kvbench.eviction.allocation.heads import Heads as HeadAllocation
from kvbench.eviction.incremental import ACCUMULATED, IncrementalEviction
from kvbench.eviction.pooling import reduce_group
from kvbench.models.decode.slots import Fresh, Reading, SlotLayer, averages_heads, not_finite

Slots = Float[Tensor, "segments slots"]


def evicts_in_place(stepping: IncrementalEviction) -> bool:
    """Whether scores and policy allow that slots are in no order, and that heads are evicted from one by one."""
    policy, score = stepping.policy, stepping.score
    return (
        score.any_order
        and policy.positions == "original"
        and policy.slot_order == "position"
        and not averages_heads(stepping)
        and (type(policy.heads).chooses is HeadAllocation.chooses or policy.layers.kind == "global")
    )


class SlotsInPlace(SlotLayer):
    """Cells with the same pool, protected first tokens and kind of `policy.state` that read a token at a time and evict
    after each; without kernels.
    """

    def __init__(
        self, layers: Sequence[LayerCache], steppings: Sequence[IncrementalEviction], reading: Reading
    ) -> None:
        super().__init__(layers, steppings, reading)
        self._sinks, self._pool = steppings[0].policy.sinks, steppings[0].policy.pool
        lasts = [steppings[cell].policy.last for cell, _ in self.owners]
        self._recent = lasts[0] if len(set(lasts)) == 1 else self._numbers(lasts)[:, None]

    def _scoring(self, stepping: IncrementalEviction, cell: int) -> Hashable:
        policy, score = stepping.policy, stepping.score
        return score, policy.reduce, policy.group_of(score.group)

    def _dense(self, stepping: IncrementalEviction) -> bool:
        return True

    def _room(self, length: int, limit: int) -> int:
        return limit + 1

    def _order_of(self, segment: int) -> Int[Tensor, "_"]:
        return self.positions[segment, : self.lengths[segment]].argsort()

    @property
    def _observes(self) -> bool:
        return any(run.stepping.score.inputs.window for run in self.runs)

    def _see_lengths(self) -> None:
        super()._see_lengths()
        self._evicting = [length > limit for length, limit in zip(self.grown, self.limits, strict=True)]
        self._evicts = torch.tensor(self._evicting).to(self.device, non_blocking=True)

    def _evict(self, window: Window | None, token: int, fresh: Fresh, due: bool) -> None:
        """Add to the running scores; let the newest pair of each full segment take the slot of the worst one.

        The worst one has the lowest score, then the lowest unpooled score, then the highest position.
        """
        if ACCUMULATED in self.states or any(self._evicting):
            scores = self._scores(window)
            self.broken = not_finite(scores)
            if any(self._evicting):
                self._replace_worst(scores, token)
        if self.lengths != self.limits:
            self.lengths = [min(length, limit) for length, limit in zip(self.grown, self.limits, strict=True)]
            self._see_lengths()

    def _scores(self, window: Window | None) -> Slots:
        """The scores of every slot of each segment, merged over its query heads and added to the running ones."""
        group, parts, state = self.query_heads // self.cache_heads, [], self.states.get(ACCUMULATED)
        for run in self.runs:
            policy, score = run.stepping.policy, run.stepping.score
            span = run.start * group, run.stop * group
            rows = window.of_span(*span) if window is not None and score.inputs.window else None
            raw = score(self._layer(run), rows, policy.reduce)
            raw = reduce_group(raw, policy.group_of(score.group), run.stop - run.start)
            short = self._longest - raw.shape[1]
            raw = torch.nn.functional.pad(raw, (0, short)) if short else raw
            parts.append(raw if state is None else state[run.segments].add_(raw))
        if state is not None:
            return state
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _replace_worst(self, scores: Slots, token: int) -> None:
        positions, first, pool = self.positions, self._sinks, self._pool
        newest, ranked = positions > token - self._recent, scores
        if pool is not None:  # along the tokens, before the newest protected ones
            order = positions.argsort(dim=1)
            before = scores.masked_fill(newest, -torch.inf if pool.kind == "max" else 0).gather(1, order)
            ranked = torch.empty_like(scores).scatter_(1, order, pool(before))
        ranked = ranked.masked_fill(newest, torch.inf)[:, first:]
        better = ranked != ranked.amin(dim=1, keepdim=True)
        if pool is not None:
            unpooled = scores[:, first:].masked_fill(better, torch.inf)
            better = unpooled != unpooled.amin(dim=1, keepdim=True)
        slot = positions[:, first:].masked_fill(better, -1).argmax(dim=1) + first
        slot = torch.where(self._evicts, slot, self._columns[0, :, 0])
        self.pairs.index_copy_(1, self._bases + slot, self.pairs.index_select(1, self._free_slots))
        numbers, index = self._numbers_of_slots, slot[None, :, None].expand_as(self._columns)
        numbers.scatter_(2, index, numbers.gather(2, self._columns))
