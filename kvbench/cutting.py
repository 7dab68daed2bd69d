"""What a cell does with what was read: cut it, say what is left, and hold it until questions are asked."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvbench.cache import KVCache
from kvbench.eviction import Eviction
from kvbench.models.engine import Engine
from kvbench.models.growing import Growing, GrowingTile
from kvbench.models.load import LoadedModel
from kvbench.models.tile import Tile
from kvbench.plan import Cell
from kvbench.policy import Policy
from kvbench.ranking import Ranking
from kvbench.rows import Cut
from kvbench.scores.score import Score
from kvbench.shapes import Kept
from kvbench.stepping import Stepping, capacity_after, kept_of

Rankings = dict[tuple[Policy, Score], tuple[tuple[Ranking, ...], float]]
"""Rankings of what was read that its budgets share, with the seconds each took."""


@dataclass(frozen=True)
class Held:
    """A cell after its cut: every question starts from `cache`. `stepping` is there if answers are cut too."""

    cut: Cut
    cache: KVCache
    stepping: Stepping | None


def cut(model: LoadedModel, cell: Cell, read: KVCache, rankings: Rankings) -> Held:
    """Evict for one cell. Budgets of one policy and score share a ranking, whose seconds count for each of them.

    What was read block by block was cut on the way. Raises ValueError for what this prompt or cell cannot do.
    """
    eviction = Eviction(cell.policy, cell.score, cell.budget)
    if cell.schedule.prefill_block is not None:
        stepping = stepping_from_nothing(cell, read.seen) if cell.schedule.decode_every is not None else None
        return Held(_measured(cell, read, kept_of(read), None), read, stepping)
    eviction.check(read)
    ranking, ranking_seconds = None, 0.0
    if not eviction.keeps_all(read):
        key = (cell.policy, cell.score)
        if key not in rankings:
            start = clock(model)
            rankings[key] = (eviction.rank(read), clock(model) - start)
        ranking, ranking_seconds = rankings[key]
    start = clock(model)
    decision = eviction.decide(read, ranking)
    cache, stepping = eviction.cut(read, decision), None
    if cell.schedule.decode_every is not None:
        stepping = Stepping(eviction, capacity_after(read, decision, cell.budget.of(read.seen)))
        cache = stepping.remember(read, decision, cache)
    seconds = ranking_seconds + clock(model) - start
    return Held(_measured(cell, cache, decision.kept, seconds), cache, stepping)


def stepping_from_nothing(cell: Cell, tokens: int) -> Stepping:
    """How a cell cuts a prompt of so many tokens while it is read: its budget is what it may hold at any time."""
    return Stepping(Eviction(cell.policy, cell.score, cell.budget), cell.budget.of(tokens))


def tile_of(engine: Engine, held: list[Held], room: int) -> Tile | GrowingTile:
    """The batch in which cells answer: all of them are cut again while they do, or none. The list is emptied."""
    if held[0].stepping is None:
        return Tile((held.pop(0).cache for _ in range(len(held))), engine.tile, room)
    growing = []
    for one in held:
        every = one.cut.cell.schedule.decode_every
        assert one.stepping is not None and every is not None
        growing.append(Growing(one.stepping, every, one.cache, engine.max_length))
    held.clear()
    return GrowingTile(growing, engine.tile, room)


def clock(model: LoadedModel) -> float:
    """Seconds, once the device has done what it was given."""
    model.engine.sync()
    return time.perf_counter()


def _measured(cell: Cell, cache: KVCache, kept: Sequence[Kept], seconds: float | None) -> Cut:
    lengths = tuple(tuple(mask.sum(dim=1).tolist()) for mask in kept)
    return Cut(
        cell,
        kept_tokens=cache.pairs / sum(map(len, lengths)) if kept else None,
        layers=tuple(layer.index for layer in cache.evictable),
        lengths=lengths,
        masks=tuple(_packed(mask) for mask in kept),
        cache_bytes=cache.bytes_held,
        allocated_bytes=cache.bytes_allocated,
        seconds=seconds,
    )


def _packed(kept: Kept) -> tuple[bytes, ...]:
    """The mask of each stored head, eight positions a byte."""
    return tuple(row.tobytes() for row in np.packbits(kept.cpu().numpy(), axis=1))
