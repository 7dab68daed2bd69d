"""One cell after a shared prefill: evict, measure what is kept, and put cells together into a decode batch."""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from kvbench.cache.kv_cache import KVCache
from kvbench.cache.shapes import Kept
from kvbench.eviction.evict import Eviction, rank_together, ranks_alike, scores_alike
from kvbench.eviction.incremental import IncrementalEviction, capacity_after, kept_of
from kvbench.eviction.policy import Policy
from kvbench.eviction.ranking import Ranking
from kvbench.eviction.scores.score import Repeat, Score
from kvbench.models.decode.batch import DecodeBatch
from kvbench.models.decode.evicting_batch import EvictingBatch
from kvbench.models.decode.holder import Held
from kvbench.models.engine import Engine
from kvbench.models.loading.load import LoadedModel
from kvbench.models.prompts.prompt import Prompt
from kvbench.models.repeat import passes
from kvbench.run.plan import Cell
from kvbench.run.rows import EvictionResult


@dataclass
class SharedPrefill:
    """The cache of a prefill, and results that several cells use, each with the seconds it took.

    prompt: one of the prompts that share the context. rankings: of policies that rank alike and a score, whatever the
    budget; the newest `most_rankings` of them.
    """

    cache: KVCache
    prompt: Prompt
    cells: Sequence[Cell] = ()
    rankings: dict[tuple[Policy, Score], tuple[tuple[Ranking, ...], float]] = field(default_factory=dict)
    most_rankings: int = sys.maxsize
    repeated: dict[Repeat, tuple[KVCache, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class CompressedCache:
    """A cell's cache after eviction; every question starts from it.

    incremental: evicts from the answer too, if the schedule says so.
    """

    result: EvictionResult
    cache: Held
    incremental: IncrementalEviction | None = None


def evict_cell(model: LoadedModel, cell: Cell, shared: SharedPrefill) -> CompressedCache:
    """Evict for one cell. Time shared with other cells counts for each of them in full.

    A cache that was prefilled in blocks was evicted from on the way. Raises ValueError for what this prompt or cell
    cannot do.
    """
    full, eviction = shared.cache, eviction_of(cell, shared.prompt)
    if cell.schedule.prefill_block is not None:
        incremental = None
        if cell.schedule.decode_every is not None:
            incremental = incremental_eviction(cell, shared.prompt).after(full)
            incremental = incremental.with_answer_budget(full, cell.schedule.answer_budget)
        return CompressedCache(measure(cell, full, kept_of(full), None), full, incremental)
    eviction.check(full)
    rankings, seconds = None, 0.0
    if not eviction.keeps_all(full):
        full, repeat_seconds = repeated(model, shared, eviction.score.inputs.repeat)
        rankings, ranking_seconds = ranked(model, shared, eviction, full)
        seconds = repeat_seconds + ranking_seconds
    start = clock(model)
    decision = eviction.decide(full, rankings)
    cache, incremental = eviction.evict(full, decision), None
    if cell.schedule.decode_every is not None:
        incremental = IncrementalEviction(eviction, capacity_after(eviction, full, decision), decoding=True)
        cache = incremental.remember(full, decision, cache)
        incremental = incremental.with_answer_budget(cache, cell.schedule.answer_budget)
    if cell.policy.positions == "cache":
        cache = model.engine.re_rotation.begin(cache)
    held = cell.held.hold(cache)
    result = measure(cell, held, decision.kept, seconds + clock(model) - start)
    return CompressedCache(result, held, incremental)


def eviction_of(cell: Cell, prompt: Prompt, tokens: int | None = None) -> Eviction:
    """The eviction of a cell for a prompt, or for its first `tokens`."""
    tokens = len(prompt.context) if tokens is None else tokens
    policy = cell.policy.of_prompt(prompt.head, tokens, cell.budget, prompt.question_tokens, prompt.tail)
    return Eviction(policy, cell.score, cell.budget)


def incremental_eviction(cell: Cell, prompt: Prompt, tokens: int | None = None) -> IncrementalEviction:
    """The eviction of a cell during prefill, block by block.

    Its budget is the most that it may hold after any block; after a turn, with `tokens` read so far, the budget of
    these.
    """
    eviction = eviction_of(cell, prompt, tokens)
    return IncrementalEviction(eviction, eviction.capacity(len(prompt.context) if tokens is None else tokens))


def batch_of(
    engine: Engine, compressed: list[CompressedCache], max_new_tokens: int, question_tokens: int = 0
) -> DecodeBatch:
    """The decode batch of cells that share a holder; all of them evict from the answer too, or none does.

    question_tokens: how many of the new tokens precede the first answer. The list is emptied: a cache can be freed as
    soon as the batch has its copy.
    """
    cells = list(compressed)
    compressed.clear()
    holder, caches = cells[0].result.cell.held, [cell.cache for cell in cells]
    assert all(cell.result.cell.held == holder for cell in cells), "cells of a batch share one holder"
    evictions = [(cell.incremental, cell.result.cell.schedule) for cell in cells]
    cells.clear()
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
    return EvictingBatch(evicting, engine.tile, max_new_tokens)


def clock(model: LoadedModel) -> float:
    """Seconds, after the device has finished its work."""
    model.engine.sync()
    return time.perf_counter()


def repeated(model: LoadedModel, shared: SharedPrefill, repeat: Repeat | None) -> tuple[KVCache, float]:
    """The cache with the record of a repetition, if a score asks for one."""
    if repeat is None:
        return shared.cache, 0.0
    if repeat not in shared.repeated:
        start = clock(model)
        texts = passes(model.tokenizer, shared.prompt, repeat)
        shared.repeated[repeat] = (model.engine.repeat(shared.cache, texts, repeat), clock(model) - start)
    return shared.repeated[repeat]


def ranked(
    model: LoadedModel, shared: SharedPrefill, eviction: Eviction, cache: KVCache
) -> tuple[tuple[Ranking, ...], float]:
    """The rankings of an eviction, and of other policies with the same raw scores if all can be ranked."""
    score, policy = eviction.score, ranks_alike(eviction.policy, eviction.score)
    if (policy, score) not in shared.rankings:
        start = clock(model)
        policies = (policy, *_ranked_with(shared, eviction, policy))[: shared.most_rankings]
        for oldest in list(shared.rankings)[: max(0, len(shared.rankings) + len(policies) - shared.most_rankings)]:
            del shared.rankings[oldest]
        try:
            rankings = rank_together(cache, policies, score)
        except ValueError:
            policies = (policy,)
            rankings = rank_together(cache, policies, score)
        seconds = clock(model) - start
        shared.rankings |= {(policy, score): (each, seconds) for policy, each in zip(policies, rankings, strict=True)}
    return shared.rankings[policy, score]


def _ranked_with(shared: SharedPrefill, eviction: Eviction, policy: Policy) -> tuple[Policy, ...]:
    """Other policies of the job that take the same raw scores and evict something."""
    num_tokens, score = shared.cache.num_tokens, eviction.score
    raw_scores = scores_alike(eviction.policy, score, num_tokens)
    evictions = (eviction_of(cell, shared.prompt) for cell in shared.cells if cell.score == score)
    others = (other.policy for other in evictions if not other.keeps_all(shared.cache))
    alike = (ranks_alike(other, score) for other in others if scores_alike(other, score, num_tokens) == raw_scores)
    return tuple(other for other in dict.fromkeys(alike) if other != policy)


def measure(cell: Cell, cache: Held, kept: Sequence[Kept], seconds: float | None) -> EvictionResult:
    """Measure the kept set of a cell and its bytes; scoring and eviction took `seconds`, if not a part of prefill."""
    device = kept[0].device if kept else None  # masks of several GPUs are read from the first: one wait for all
    on_host = torch.stack([mask.to(device, non_blocking=True) for mask in kept]).cpu() if kept else ()
    lengths = tuple(tuple(mask.sum(dim=1).tolist()) for mask in on_host)
    return EvictionResult(
        cell,
        kept_tokens=sum(map(sum, lengths)) / sum(map(len, lengths)) if kept else None,
        layers=tuple(layer.index for layer in cache.evictable),
        lengths=lengths,
        masks=tuple(tuple(row.tobytes() for row in np.packbits(mask.numpy(), axis=1)) for mask in on_host),
        cache_bytes=cache.bytes_held,
        allocated_bytes=cache.bytes_allocated + sum(step.unused_bytes(cache) for step in cell.policy.steps),
        seconds=seconds,
    )
