"""One sample and all its cells: read once, evict and decode many, and say in rows what happened."""

import hashlib
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from kvbench.cache import KVCache
from kvbench.eviction import Decision, Eviction, reads_rows
from kvbench.models.engine import Prefilled
from kvbench.models.load import LoadedModel
from kvbench.models.prompt import Prompt, build, stop_tokens
from kvbench.models.tile import Tile
from kvbench.plan import Cell
from kvbench.policy import Policy
from kvbench.ranking import Ranking
from kvbench.records import Row
from kvbench.scores.score import Score
from kvbench.tasks.sample import Sample

Rankings = dict[tuple[Policy, Score], tuple[tuple[Ranking, ...], float]]
"""Rankings of a prompt that its budgets share, with the seconds each took."""


@dataclass(frozen=True)
class Cut:
    """What eviction did for a cell, measured right after it; `seconds` are those of scoring and cutting.

    `kept_tokens` is None for a model without a layer that eviction could cut.
    """

    cell: Cell
    kept_tokens: float | None
    kept_sha256: str
    cache_bytes: int
    seconds: float


@dataclass(frozen=True)
class Reading:
    """A prompt that was read, and how long that took."""

    prompt: Prompt
    prefilled: Prefilled
    seconds: float


def run_unit(model: LoadedModel, sample: Sample, cells: Sequence[Cell], environment: str) -> list[Row]:
    """Rows of all `cells` on one sample, in the order of the cells.

    What a sample or a cell cannot do (a prompt too long, a budget below the protected tokens, NaN in the cache) becomes
    a row with its `error`; the other cells go on.
    """
    try:
        reading = _read(model, sample, cells)
    except ValueError as error:
        return [_failed(cell, sample, str(error), environment) for cell in cells]
    rankings: Rankings = {}
    rows: dict[str, Row] = {}
    for cells_of_tile in _tiles(cells, model.engine.tile):
        cuts, caches = [], []
        for cell in cells_of_tile:
            try:
                cut, cache = _cut(model, cell, reading.prefilled.cache, rankings)
            except ValueError as error:
                rows[cell.id] = _failed(cell, sample, str(error), environment, reading)
            else:
                cuts.append(cut)
                caches.append(cache)
        for row in _answer(model, sample, cuts, caches, reading, environment) if cuts else ():
            rows[row.cell] = row
    return [rows[cell.id] for cell in cells]


def _read(model: LoadedModel, sample: Sample, cells: Sequence[Cell]) -> Reading:
    room, chat = model.max_length - sample.max_new_tokens, cells[0].model.chat
    prompt = build(model.tokenizer, sample.context + sample.question, sample.answer_prefix, chat, room)
    windows = {cell.policy.rows(len(prompt.ids)) for cell in cells if reads_rows(cell.policy, cell.score)}
    start = _clock(model)
    prefilled = model.engine.prefill(torch.tensor(prompt.ids), windows)
    return Reading(prompt, prefilled, _clock(model) - start)


def _tiles(cells: Sequence[Cell], size: int) -> Iterator[list[Cell]]:
    """At most `size` cells that store the same heads, in their order."""
    for layout in sorted({cell.policy.layout for cell in cells}):
        alike = [cell for cell in cells if cell.policy.layout == layout]
        yield from (alike[start : start + size] for start in range(0, len(alike), size))


def _cut(model: LoadedModel, cell: Cell, full: KVCache, rankings: Rankings) -> tuple[Cut, KVCache]:
    """Evict for one cell. Budgets of one policy and score share a ranking, whose seconds count for each of them."""
    eviction = Eviction(cell.policy, cell.score, cell.budget)
    eviction.check(full)
    ranking, ranking_seconds = None, 0.0
    if not eviction.keeps_all(full):
        key = (cell.policy, cell.score)
        if key not in rankings:
            start = _clock(model)
            rankings[key] = (eviction.rank(full), _clock(model) - start)
        ranking, ranking_seconds = rankings[key]
    start = _clock(model)
    decision = eviction.decide(full, ranking)
    cache = eviction.cut(full, decision)
    seconds = ranking_seconds + _clock(model) - start
    kept_tokens = cache.pairs / decision.lengths.numel() if decision.kept else None
    return Cut(cell, kept_tokens, _hash_kept(decision), cache.bytes_held, seconds), cache


def _answer(
    model: LoadedModel,
    sample: Sample,
    cuts: Sequence[Cut],
    caches: list[KVCache],
    reading: Reading,
    environment: str,
) -> Iterator[Row]:
    """Rows of a tile. `caches` are handed over: the tile has copies, and the list is emptied once it stands."""
    task, start = cuts[0].cell.task, _clock(model)
    stop = model.stop | stop_tokens(model.tokenizer, task.stop)
    tile = Tile(caches, model.engine.tile, sample.max_new_tokens)
    caches.clear()
    building = (_clock(model) - start) / len(cuts)
    answers = model.engine.generate(reading.prefilled, tile, stop, task.min_new_tokens)
    for cut, answer, allocated in zip(cuts, answers, tile.allocated_bytes, strict=True):
        if answer.broken:
            error = f"the logits are no numbers (NaN or infinite) after {len(answer.ids)} new tokens"
            yield _failed(cut.cell, sample, error, environment, reading)
            continue
        full, text = reading.prefilled.cache, _text(model, answer.ids, stop)
        yield Row(
            **_asked(cut.cell, sample),
            prompt_tokens=len(reading.prompt.ids),
            kept_tokens=cut.kept_tokens,
            kept_fraction=None if cut.kept_tokens is None else cut.kept_tokens / full.seen,
            local_layers=full.local_layers,
            cache_bytes=cut.cache_bytes,
            full_cache_bytes=full.bytes_held,
            allocated_bytes=allocated,
            store="flat",
            prefill_seconds=reading.seconds,
            evict_seconds=cut.seconds,
            decode_seconds=building + answer.seconds,
            new_tokens=len(answer.ids),
            prediction=text,
            metric=cut.cell.task.metric,
            value=cut.cell.task.score(text, sample),
            prompt_sha256=reading.prompt.sha256,
            output_sha256=hashlib.sha256(np.array(answer.ids, dtype="<i8").tobytes()).hexdigest(),
            kept_sha256=cut.kept_sha256,
            top2_margin=answer.top2_margin,
            environment=environment,
        )


def _text(model: LoadedModel, ids: Sequence[int], stop: Collection[int]) -> str:
    """The answer in words, without what ended it."""
    return model.tokenizer.decode([token for token in ids if token not in stop], skip_special_tokens=True)


def _failed(cell: Cell, sample: Sample, error: str, environment: str, reading: Reading | None = None) -> Row:
    happened: dict[str, Any] = {}
    if reading is not None:
        happened = {"prompt_tokens": len(reading.prompt.ids), "prompt_sha256": reading.prompt.sha256}
    return Row(**_asked(cell, sample), **happened, metric=cell.task.metric, error=error, environment=environment)


def _asked(cell: Cell, sample: Sample) -> dict[str, Any]:
    return {
        "cell": cell.id,
        "sample": sample.id,
        "model": cell.model.label,
        "task": cell.task.name,
        "task_version": cell.task.version,
        "context_length": cell.task.context_length,
        "policy": cell.policy_label,
        "score": cell.score_label,
        "budget": str(cell.budget),
        "variant": cell.policy.variant,
        "layout": cell.policy.layout,
        "schedule": str(cell.schedule),
        "seed": cell.seed,
    }


def _hash_kept(decision: Decision) -> str:
    digest = hashlib.sha256()
    for kept in decision.kept:
        digest.update(np.packbits(kept.cpu().numpy(), axis=1).tobytes())
    return digest.hexdigest()


def _clock(model: LoadedModel) -> float:
    model.engine.sync()
    return time.perf_counter()
