"""Which cells are decoded together, and the batch that decodes them."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from kvbench.cache.kv_cache import KVCache
from kvbench.models.decode.batch import DecodeBatch
from kvbench.models.engine import Engine
from kvbench.run.cell import Cell
from kvbench.run.evict_cell import HeldCache

CellAnswer = tuple[Cell, int]
"""A cell, and which of the answers to each prompt, from 0."""


class BatchKind(NamedTuple):
    """Properties that cells of one decode batch share."""

    holder: str
    layout: str
    evicts: bool


def batch_kind(cell: Cell) -> BatchKind:
    """Return the kind of batch that decodes a cell."""
    return BatchKind(repr(cell.held), cell.policy.layout, cell.schedule.decode_every is not None)


def batches(answers: Sequence[CellAnswer], size: int) -> Iterator[list[CellAnswer]]:
    """Yield at most `size` answers that can be decoded together: all evict from the answer too, or none does, and
    they have one holder. Answers that are scored alike stand together, which takes fewer operations.
    """

    def kind(answer: CellAnswer) -> BatchKind:
        return batch_kind(answer[0])

    def scoring(answer: CellAnswer) -> tuple[int, str, str, str]:
        policy = answer[0].policy
        return answer[0].schedule.decode_every or 0, str(policy.pool), policy.name, answer[0].score.name

    for _, group in groupby(sorted(answers, key=lambda answer: (kind(answer), scoring(answer))), kind):
        alike = list(group)
        yield from (alike[start : start + size] for start in range(0, len(alike), size))


def batch_of(
    engine: Engine, held_caches: list[HeldCache], max_new_tokens: int, question_tokens: int = 0
) -> DecodeBatch:
    """Return the decode batch of cells that share a holder; all of them evict from the answer too, or none does.

    question_tokens: how many of the new tokens precede the first answer. The list is emptied: a cache can be freed as
    soon as the batch has its copy.
    """
    cells, caches = [each.result.cell for each in held_caches], [each.cache for each in held_caches]
    evictions = [(each.incremental, each.result.cell.schedule) for each in held_caches]
    held_caches.clear()
    holder = cells[0].held
    assert all(cell.held == holder for cell in cells), "cells of a batch share one holder"
    if evictions[0][0] is None:
        return holder.batch(caches, engine, max_new_tokens, question_tokens)
    evicting = []
    for incremental, schedule in evictions:
        assert incremental is not None and schedule.decode_every is not None
        kept = caches.pop(0)
        assert isinstance(kept, KVCache), "what is packed is not evicted from"
        cache = engine.evicting_cache(incremental, schedule.decode_every, kept)
        cache.pending = schedule.pending(cache.num_tokens)
        evicting.append(cache)
    return engine.decoding.evicting_batch(evicting, engine.max_batch, max_new_tokens)
