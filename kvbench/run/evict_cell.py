"""One cell after a shared prefill: evict, and measure what is kept."""

import sys
import time
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate, islice
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import UInt8
from torch import Tensor

from kvbench.cache.kv_cache import CutCache, KVCache
from kvbench.cache.shapes import Kept, Lengths
from kvbench.eviction.evict import Eviction, rank_together, ranks_alike, scores_alike
from kvbench.eviction.incremental import IncrementalEviction, capacity_after, kept_of
from kvbench.eviction.policy import Policy
from kvbench.eviction.ranking import Ranking
from kvbench.eviction.scores.score import ContextRepetition, Score, Summed
from kvbench.models.decode.holder import Held
from kvbench.models.loading.load import LoadedModel
from kvbench.models.marks import Timed
from kvbench.models.prompts.prompt import Prompt
from kvbench.models.repeat import passes
from kvbench.run.cell import Cell
from kvbench.run.memory import is_copied_later
from kvbench.run.rows import EvictionResult, RowError
from kvbench.support.errors import Fault, OverLimit, blaming, of_machine

MASKS = 2**28
"""Bytes of masks that are copied from a GPU at a time."""


@dataclass
class SharedPrefill:
    """The cache of a prefill, and results that several cells use, each with the seconds it took.

    prompt: one of the prompts that share the context. rankings: of policies that rank alike and a score, whatever the
    budget; the newest `most_rankings` of them. summed: seconds of scores over all queries, made with the prefill.
    """

    cache: KVCache
    prompt: Prompt
    cells: Sequence[Cell] = ()
    rankings: dict[tuple[Policy, Score], tuple[tuple[Ranking, ...], Timed]] = field(default_factory=dict)
    most_rankings: int = sys.maxsize
    repeated: dict[ContextRepetition, tuple[KVCache, float]] = field(default_factory=dict)
    summed: Mapping[Summed, float] = field(default_factory=dict)


@dataclass(frozen=True)
class HeldCache:
    """A cell's cache after eviction; every question starts from it.

    incremental: evicts from the answer too, if the schedule says so.
    """

    result: EvictionResult
    cache: Held
    incremental: IncrementalEviction | None = None


class EvictedCell(NamedTuple):
    """A cell that has evicted, before what it keeps is read from the device. lengths: how many pairs that is, by layer
    and cache head. taken: scoring and eviction; None if they are a part of the prefill.
    """

    cell: Cell
    cache: Held
    kept: Sequence[Kept]
    lengths: Lengths
    taken: Timed | None = None
    incremental: IncrementalEviction | None = None


def evict_cell(model: LoadedModel, cell: Cell, shared: SharedPrefill) -> HeldCache:
    """Evict for one cell, which then has a cache of its own. Time shared with other cells counts for each of them in
    full.

    A cache that was prefilled in blocks was evicted from on the way. Raises ValueError for what this prompt or cell
    cannot do.
    """
    evicted = _evict(model, cell, shared, copy=True)
    (result,) = measure([evicted])
    return HeldCache(result, evicted.cache, evicted.incremental)


def evict_cells(
    model: LoadedModel, cells: Sequence[Cell], shared: SharedPrefill, copy: bool
) -> list[HeldCache | RowError]:
    """Evict for cells that will answer together; in place of a cell that cannot, the reason. The host waits once for
    what all of them keep.

    Raises Fault for a part that spoils the full cache, and what torch raises when memory runs out.

    copy: give each cell a cache of its own, which may outlive the full one. False where a decode batch copies the kept
    pairs next: that saves one copy of them.
    """
    outcomes: list[EvictedCell | RowError] = []
    for cell in cells:
        try:
            outcomes.append(_evict(model, cell, shared, copy))
        except Exception as error:
            if isinstance(error, OverLimit) or of_machine(error) or (isinstance(error, Fault) and error.spoils):
                raise
            outcomes.append(RowError.of(error))  # without its frames, which hold arrays
    results = iter(measure([outcome for outcome in outcomes if isinstance(outcome, EvictedCell)]))
    return [
        outcome if isinstance(outcome, RowError) else HeldCache(next(results), outcome.cache, outcome.incremental)
        for outcome in outcomes
    ]


def _evict(model: LoadedModel, cell: Cell, shared: SharedPrefill, copy: bool) -> EvictedCell:
    """Evict for one cell; `copy`: to a cache of its own."""
    full, eviction = shared.cache, eviction_of(cell, shared.prompt)
    if cell.schedule.prefill_block is not None:
        incremental = None
        if cell.schedule.decode_every is not None:
            incremental = incremental_eviction(cell, shared.prompt).after(full)
            incremental = incremental.with_answer_budget(full, cell.schedule.answer_budget)
        return EvictedCell(cell, full, kept_of(full), full.lengths, incremental=incremental)
    eviction.check(full)
    rankings, scoring = None, Timed()
    if not eviction.keeps_all(full):
        with blaming("score", eviction.score):
            full, repeat_seconds = with_repetition(model, shared, eviction.score.inputs.repeat)
        rankings, ranking = rankings_of(model, shared, eviction, full)
        scoring = Timed(repeat_seconds) + ranking
    began = model.engine.mark()
    decision = eviction.decide(full, rankings)
    if not copy and is_copied_later(cell):
        cut, evicting = CutCache(full, decision.kept, decision.lengths), Timed(spans=((began, model.engine.mark()),))
        return EvictedCell(cell, cut, decision.kept, decision.lengths, scoring + evicting)
    cache, incremental = eviction.evict(full, decision), None
    if cell.schedule.decode_every is not None:
        incremental = IncrementalEviction(eviction, capacity_after(eviction, full, decision), decoding=True)
        cache = incremental.remember(full, decision, cache)
        incremental = incremental.with_answer_budget(cache, cell.schedule.answer_budget)
    for step in cell.policy.steps:
        cache = step.begin(cache, model.engine)
    held, evicting = cell.held.hold(cache), Timed(spans=((began, model.engine.mark()),))
    return EvictedCell(cell, held, decision.kept, decision.lengths, scoring + evicting, incremental)


def eviction_of(cell: Cell, prompt: Prompt, tokens: int | None = None) -> Eviction:
    """Return the eviction of a cell for a prompt, or for its first `tokens`."""
    tokens = len(prompt.prefill) if tokens is None else tokens
    policy = cell.policy.resolve(
        prompt.prefix_tokens,
        tokens,
        cell.budget,
        question_tokens=prompt.question_tokens,
        suffix_tokens=prompt.suffix_tokens,
    )
    return Eviction(policy, cell.score, cell.budget)


def incremental_eviction(cell: Cell, prompt: Prompt, tokens: int | None = None) -> IncrementalEviction:
    """Return the eviction of a cell during prefill, block by block.

    Its budget is the most that it may hold after any block; after a turn, with `tokens` read so far, the budget of
    these.
    """
    eviction = eviction_of(cell, prompt, tokens)
    return IncrementalEviction(eviction, eviction.capacity(len(prompt.prefill) if tokens is None else tokens))


def clock(model: LoadedModel) -> float:
    """Return seconds, after the device has finished its work."""
    model.engine.sync()
    return time.perf_counter()


def with_repetition(
    model: LoadedModel, shared: SharedPrefill, repeat: ContextRepetition | None
) -> tuple[KVCache, float]:
    """Return the cache with the record of a repetition, if a score asks for one, and the seconds that it took."""
    if repeat is None:
        return shared.cache, 0.0
    if repeat not in shared.repeated:
        start = clock(model)
        texts = passes(model.tokenizer, shared.prompt, repeat)
        shared.repeated[repeat] = (model.engine.repeat(shared.cache, texts, repeat), clock(model) - start)
    return shared.repeated[repeat]


def rankings_of(
    model: LoadedModel, shared: SharedPrefill, eviction: Eviction, cache: KVCache
) -> tuple[tuple[Ranking, ...], Timed]:
    """Return the rankings of an eviction, and what they took.

    Policies of other cells with the same raw scores are ranked at the same time, if all can be.
    """
    score, policy = eviction.score, ranks_alike(eviction.policy, eviction.score)
    if (policy, score) not in shared.rankings:
        began = model.engine.mark()
        policies = (policy, *_ranked_with(shared, eviction, policy))[: shared.most_rankings]
        for oldest in list(shared.rankings)[: max(0, len(shared.rankings) + len(policies) - shared.most_rankings)]:
            del shared.rankings[oldest]
        rankings = None
        if len(policies) > 1:
            with suppress(ValueError):  # of another policy; once it is dropped, no frame holds what was computed
                rankings = rank_together(cache, policies, score)
        if rankings is None:
            policies = (policy,)
            rankings = rank_together(cache, policies, score)
        full = score, eviction.policy.reduce, eviction.policy.skipped
        summed = shared.summed.get(full, 0.0) if policy.window == "all" else 0.0
        taken = Timed(summed, ((began, model.engine.mark()),))
        shared.rankings |= {(each, score): (made, taken) for each, made in zip(policies, rankings, strict=True)}
    return shared.rankings[policy, score]


def _ranked_with(shared: SharedPrefill, eviction: Eviction, policy: Policy) -> tuple[Policy, ...]:
    """Other policies of the job that take the same raw scores and evict something."""
    num_tokens, score = shared.cache.num_tokens, eviction.score
    raw_scores = scores_alike(eviction.policy, score, num_tokens)
    evictions = (eviction_of(cell, shared.prompt) for cell in shared.cells if cell.score == score)
    others = (other.policy for other in evictions if not other.keeps_all(shared.cache))
    alike = (ranks_alike(other, score) for other in others if scores_alike(other, score, num_tokens) == raw_scores)
    return tuple(other for other in dict.fromkeys(alike) if other != policy)


def measure(evicted: Sequence[EvictedCell]) -> list[EvictionResult]:
    """Measure the kept sets of cells and their bytes: the host waits for all masks at once."""
    packed = iter(_packed([mask for each in evicted for mask in each.kept]))
    return [_result_of(each, list(islice(packed, len(each.kept)))) for each in evicted]


def _result_of(evicted: EvictedCell, packed: Sequence[np.ndarray]) -> EvictionResult:
    cell, cache = evicted.cell, evicted.cache
    lengths = tuple(tuple(row[: len(bits)]) for row, bits in zip(evicted.lengths.tolist(), packed, strict=True))
    return EvictionResult(
        cell,
        kept_tokens=sum(map(sum, lengths)) / sum(map(len, lengths)) if packed else None,
        layers=tuple(layer.index for layer in cache.evictable),
        lengths=lengths,
        masks=tuple(tuple(row.tobytes() for row in bits) for bits in packed),
        cache_bytes=cache.bytes_held,
        allocated_bytes=cache.bytes_allocated + sum(step.unused_bytes(cache) for step in cell.policy.steps),
        seconds=None if evicted.taken is None else evicted.taken.seconds,
    )


def _packed(masks: Sequence[Kept]) -> list[np.ndarray]:
    """Return the bits of each mask, as of `numpy.packbits`. A GPU packs its own and others', up to `MASKS` at a time:
    one wait for each such part.
    """
    packed = {place: np.packbits(mask.numpy(), axis=1) for place, mask in enumerate(masks) if mask.device.type == "cpu"}
    waiting = [place for place in range(len(masks)) if place not in packed]
    while waiting:
        sizes = list(accumulate(masks[place].numel() for place in waiting))
        part = waiting[: max(1, bisect_right(sizes, MASKS))]
        device = masks[part[0]].device
        bits = _packed_on_device(torch.cat([masks[place].to(device, non_blocking=True) for place in part])).cpu()
        packed |= zip(part, np.split(bits.numpy(), list(accumulate(len(masks[place]) for place in part))), strict=False)
        waiting = waiting[len(part) :]
    return [packed[place] for place in range(len(masks))]


def _packed_on_device(masks: Kept) -> UInt8[Tensor, "rows bytes"]:
    """Return what `numpy.packbits` returns, made of the memory of the masks."""
    padded = masks if masks.shape[1] % 8 == 0 else F.pad(masks, (0, -masks.shape[1] % 8))
    weights = torch.tensor([1 << bit for bit in reversed(range(8))], dtype=torch.uint8)
    columns = padded.view(torch.uint8).unflatten(1, (-1, 8))
    return columns.mul_(weights.to(columns.device, non_blocking=True)).sum(dim=2, dtype=torch.uint8)
