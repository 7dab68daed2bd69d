"""What a cell does with what was read: cut it, say what is left, and hold it until questions are asked."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from kvbench.cache.kv_cache import KVCache
from kvbench.cache.quantized import PackedCache, pack_cache
from kvbench.cache.shapes import Kept
from kvbench.cache.stores import packing_of
from kvbench.eviction.evict import Eviction, rank_together, ranks_alike, scores_alike
from kvbench.eviction.incremental import IncrementalEviction, capacity_after, kept_of
from kvbench.eviction.policy import Policy
from kvbench.eviction.ranking import Ranking
from kvbench.eviction.scores.score import Repeat, Score
from kvbench.models.decode.batch import DecodeBatch
from kvbench.models.decode.evicting_cache import EvictingBatch
from kvbench.models.decode.quantized_batch import QuantizedBatch
from kvbench.models.decode.shared_batch import SharedCacheBatch
from kvbench.models.engine import AnyTile, Engine
from kvbench.models.loading.load import LoadedModel
from kvbench.models.prompts.prompt import Prompt
from kvbench.models.repeat import passes
from kvbench.run.make_rows import Cut
from kvbench.run.plan import Cell


@dataclass
class Shared:
    """What was read, and what cells find in it that others can use, with the seconds each took.

    `prompt` is one of those that share the context, `cells` are those that will be cut. rankings: of policies that rank
    alike and a score, whatever the budget. repeated: the cache with the record of a repetition.
    """

    cache: KVCache
    prompt: Prompt
    cells: Sequence[Cell] = ()
    rankings: dict[tuple[Policy, Score], tuple[tuple[Ranking, ...], float]] = field(default_factory=dict)
    repeated: dict[Repeat, tuple[KVCache, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class CompressedCache:
    """A cell after its cut: every question starts from `cache`. `stepping` is there if answers are cut too, `kept` if
    `cache` is the full one, which all cells share.
    """

    cut: Cut
    cache: KVCache | PackedCache
    stepping: IncrementalEviction | None
    kept: tuple[Kept, ...] | None = None


def cut(model: LoadedModel, cell: Cell, shared: Shared) -> CompressedCache:
    """Evict for one cell. What it shares with others counts for each of them in full.

    What was read block by block was cut on the way. Raises ValueError for what this prompt or cell cannot do.
    """
    read, eviction = shared.cache, eviction_of(cell, shared.prompt)
    if cell.schedule.prefill_block is not None:
        stepping = None
        if cell.schedule.decode_every is not None:
            stepping = replace(stepping_from_nothing(cell, shared.prompt), decoding=True)
        return CompressedCache(measured(cell, read, kept_of(read), None), read, stepping)
    eviction.check(read)
    rankings, seconds = None, 0.0
    if not eviction.keeps_all(read):
        read, repeating = repeated(model, shared, eviction.score.inputs.repeat)
        rankings, ranking = ranked(model, shared, eviction, read)
        seconds = repeating + ranking
    start = clock(model)
    decision = eviction.decide(read, rankings)
    if cell.store == "shared":
        return CompressedCache(
            measured(cell, read, decision.kept, seconds + clock(model) - start), read, None, decision.kept
        )
    cache, stepping = eviction.cut(read, decision), None
    packing = packing_of(cell.store)
    if packing is not None:
        packed = pack_cache(cache, packing)
        return CompressedCache(measured(cell, packed, decision.kept, seconds + clock(model) - start), packed, None)
    if cell.schedule.decode_every is not None:
        whole = cell.policy.heads.kind == "binary"
        stepping = IncrementalEviction(
            eviction, capacity_after(read, decision, cell.budget.of(read.num_tokens), whole), decoding=True
        )
        cache = stepping.remember(read, decision, cache)
    if cell.policy.positions == "cache":
        cache = model.engine.re_rotation.begin(cache)
    return CompressedCache(measured(cell, cache, decision.kept, seconds + clock(model) - start), cache, stepping)


def eviction_of(cell: Cell, prompt: Prompt) -> Eviction:
    """What a cell does with a prompt."""
    tokens = len(prompt.context)
    return Eviction(cell.policy.of_prompt(prompt.head, tokens, cell.budget.of(tokens)), cell.score, cell.budget)


def stepping_from_nothing(cell: Cell, prompt: Prompt) -> IncrementalEviction:
    """How a cell cuts what is read before the cut while it is read: its budget is what it may hold at any time."""
    return IncrementalEviction(eviction_of(cell, prompt), cell.budget.of(len(prompt.context)))


def tile_of(engine: Engine, held: list[CompressedCache], room: int) -> AnyTile:
    """The batch in which cells answer: all of them are cut again while they do, or none. The list is emptied."""
    begun = list(held)
    held.clear()
    packed = [one.cache for one in begun if isinstance(one.cache, PackedCache)]
    if packed:
        assert len(packed) == len(begun), "cells of a tile share one store"
        return QuantizedBatch(packed, engine.tile, room)
    flat = [one.cache for one in begun if isinstance(one.cache, KVCache)]
    kept = [one.kept for one in begun if one.kept is not None]
    if kept:
        assert len(kept) == len(begun), "cells of a tile share one store"
        return SharedCacheBatch(flat[0], kept, engine.tile, room)
    stepping = [(one.stepping, one.cut.cell.schedule.decode_every) for one in begun]
    begun.clear()
    if stepping[0] == (None, None):
        return DecodeBatch((_shown(engine, flat.pop(0)) for _ in range(len(flat))), engine.tile, room, engine.kernels)
    growing = []
    for each, every in stepping:
        assert each is not None and every is not None
        growing.append(engine.growing(each, every, flat.pop(0)))
    return EvictingBatch(growing, engine.tile, room)


def _shown(engine: Engine, cache: KVCache) -> KVCache:
    """A cache as the queries of a tile see it."""
    return cache if cache.resumes is None else engine.re_rotation.show_all(cache)


def clock(model: LoadedModel) -> float:
    """Seconds, once the device has done what it was given."""
    model.engine.sync()
    return time.perf_counter()


def repeated(model: LoadedModel, shared: Shared, repeat: Repeat | None) -> tuple[KVCache, float]:
    """The cache with the record of a repetition, where there is one to make."""
    if repeat is None:
        return shared.cache, 0.0
    if repeat not in shared.repeated:
        start = clock(model)
        told = passes(model.tokenizer, shared.prompt, repeat)
        shared.repeated[repeat] = (model.engine.repeat(shared.cache, told, repeat), clock(model) - start)
    return shared.repeated[repeat]


def ranked(model: LoadedModel, shared: Shared, eviction: Eviction, read: KVCache) -> tuple[tuple[Ranking, ...], float]:
    """Rankings, which do not depend on the budget.

    Policies that take the same raw scores are ranked together. Where one of them cannot be, each is by itself.
    """
    score, own = eviction.score, ranks_alike(eviction.policy, eviction.score)
    if (own, score) not in shared.rankings:
        start = clock(model)
        beside = _ranked_beside(shared, eviction, own)
        try:
            found = rank_together(read, (own, *beside), score)
        except ValueError:
            found = rank_together(read, (own,), score)
        seconds = clock(model) - start
        for policy, rankings in zip((own, *beside), found, strict=False):
            shared.rankings[policy, score] = (rankings, seconds)
    return shared.rankings[own, score]


def _ranked_beside(shared: Shared, eviction: Eviction, own: Policy) -> tuple[Policy, ...]:
    """Other policies of the unit that take the same raw scores and cut something."""
    num_tokens, score = shared.cache.num_tokens, eviction.score
    votes = scores_alike(eviction.policy, score, num_tokens)
    others = (eviction_of(cell, shared.prompt) for cell in shared.cells if cell.score == score)
    alike = (one.policy for one in others if not one.keeps_all(shared.cache))
    found = dict.fromkeys(ranks_alike(one, score) for one in alike if scores_alike(one, score, num_tokens) == votes)
    return tuple(policy for policy in found if policy != own)


def measured(cell: Cell, cache: KVCache | PackedCache, kept: Sequence[Kept], seconds: float | None) -> Cut:
    """What is left of a cell's cache; scoring and cutting took `seconds`, None where they are a part of reading.

    Bytes are those that are held: in the shared store all of the full cache, and the mask.
    """
    lengths = tuple(tuple(mask.sum(dim=1).tolist()) for mask in kept)
    masks = sum(mask.nbytes for mask in kept) if cell.store == "shared" else 0
    return Cut(
        cell,
        kept_tokens=sum(map(sum, lengths)) / sum(map(len, lengths)) if kept else None,
        layers=tuple(layer.index for layer in cache.evictable),
        lengths=lengths,
        masks=tuple(_packed(mask) for mask in kept),
        cache_bytes=cache.bytes_held,
        allocated_bytes=cache.bytes_allocated + masks,
        seconds=seconds,
    )


def _packed(kept: Kept) -> tuple[bytes, ...]:
    """The mask of each stored head, eight positions a byte."""
    return tuple(row.tobytes() for row in np.packbits(kept.cpu().numpy(), axis=1))
