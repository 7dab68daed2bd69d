"""A prompt, or a context and its questions, and all cells: read once, cut once a cell, decoded many at a time."""

import time
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
import torch

from kvbench.cache import KVCache
from kvbench.eviction import Eviction, reads_rows
from kvbench.models.load import LoadedModel
from kvbench.models.prompt import Prompt, build, stop_tokens
from kvbench.models.tile import Tile
from kvbench.plan import Cell, Unit
from kvbench.policy import Policy
from kvbench.ranking import Ranking
from kvbench.records import KeptDetail, KeptSets, Row
from kvbench.rows import Answer, Cut, Made, Reading, answered, failed
from kvbench.scores.score import Score
from kvbench.shapes import Kept
from kvbench.tasks.sample import Sample

BROKEN = "the logits are no numbers (NaN or infinite) after {} new tokens"
Rankings = dict[tuple[Policy, Score], tuple[tuple[Ranking, ...], float]]
"""Rankings of what was read that its budgets share, with the seconds each took."""


def run_unit(
    model: LoadedModel, unit: Unit, samples: Sequence[Sample], environment: str, detail: KeptDetail = "none"
) -> Made:
    """Rows of a unit, by sample and cell in the order of the unit. `samples` are those that it names.

    Questions of one context start from the same frozen cache, cut once for each cell. What a sample or a cell cannot
    do (a prompt too long, a budget below the protected tokens, NaN in the cache) becomes a row with its `error`; the
    others go on.
    """
    rows: dict[tuple[int, str], Row] = {}
    kept: list[KeptSets] = []

    def fail(cells: Sequence[Cell], sample: Sample, error: object, prompt: Prompt | None = None) -> None:
        for cell in cells:
            rows[sample.id, cell.id] = failed(cell, sample, str(error), environment, prompt)

    prompts: dict[int, Prompt] = {}
    for sample in samples:
        try:
            prompts[sample.id] = _prompt(model, sample, unit.cells[0])
        except ValueError as error:
            fail(unit.missing[sample.id], sample, error)
    asking = [sample for sample in samples if sample.id in prompts]
    if asking:
        reading, rankings = _read(model, prompts, unit.cells), Rankings()
    for tile in _tiles(unit.cells, model.engine.tile) if asking else ():
        held: dict[str, tuple[Cut, KVCache]] = {}
        for cell in tile:
            try:
                held[cell.id] = _cut(model, cell, reading.prefilled.cache, rankings)
            except ValueError as error:
                for sample in asking:
                    same = [one for one in unit.missing[sample.id] if one.id == cell.id]
                    fail(same, sample, error, prompts[sample.id])
        for sample in asking:
            prompt, own = prompts[sample.id], [held[cell.id] for cell in unit.missing[sample.id] if cell.id in held]
            if sample is asking[-1]:
                held.clear()
            for cut, answer in _answer(model, sample, prompt, reading, own) if own else ():
                if answer.generation.broken:
                    fail([cut.cell], sample, BROKEN.format(len(answer.generation.ids)), prompt)
                else:
                    rows[sample.id, cut.cell.id] = answered(sample, prompt, reading, cut, answer, environment)
                    if detail != "none":
                        kept.append(cut.kept_by(sample, len(prompt.context), detail))
    return Made([rows[sample, cell.id] for sample, cells in unit.missing.items() for cell in cells], kept)


def _prompt(model: LoadedModel, sample: Sample, cell: Cell) -> Prompt:
    room, spec = model.max_length - sample.max_new_tokens, cell.model
    prompt = build(
        model.tokenizer,
        sample,
        cell.task,
        room,
        chat=spec.chat,
        system=spec.system,
        evict_after=cell.schedule.evict_after,
    )
    model.engine.check_length(len(prompt.context), len(prompt.question) + sample.max_new_tokens - 1)
    return prompt


def _read(model: LoadedModel, prompts: Mapping[int, Prompt], cells: Sequence[Cell]) -> Reading:
    (context,) = {prompt.context for prompt in prompts.values()}
    windows = {cell.policy.rows(len(context)) for cell in cells if reads_rows(cell.policy, cell.score)}
    start = _clock(model)
    prefilled = model.engine.prefill(torch.tensor(context), windows)
    return Reading(prefilled, _clock(model) - start)


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
    cut = Cut(
        cell,
        kept_tokens=cache.pairs / decision.lengths.numel() if decision.kept else None,
        layers=tuple(layer.index for layer in full.evictable),
        lengths=tuple(tuple(layer) for layer in decision.lengths.tolist()),
        masks=tuple(_packed(kept) for kept in decision.kept),
        cache_bytes=cache.bytes_held,
        seconds=seconds,
    )
    return cut, cache


def _answer(
    model: LoadedModel, sample: Sample, prompt: Prompt, reading: Reading, held: list[tuple[Cut, KVCache]]
) -> Iterator[tuple[Cut, Answer]]:
    """Answers of a tile. `held` is handed over: the tile has copies, and the list is emptied once it stands."""
    cuts, start = [cut for cut, _ in held], _clock(model)
    task = cuts[0].cell.task
    stop = model.stop | stop_tokens(model.tokenizer, task.stop)
    tile = Tile([cache for _, cache in held], model.engine.tile, len(prompt.question) + sample.max_new_tokens)
    held.clear()
    building = (_clock(model) - start) / len(cuts)
    question = torch.tensor(prompt.question) if prompt.question else None
    generations = model.engine.generate(reading.prefilled, tile, stop, task.min_new_tokens, question)
    for cut, generation, allocated in zip(cuts, generations, tile.allocated_bytes, strict=True):
        text = _text(model, generation.ids, stop)
        yield cut, Answer(generation, text, allocated, building + generation.seconds)


def _text(model: LoadedModel, ids: Sequence[int], stop: Collection[int]) -> str:
    """The answer in words, without what ended it."""
    return model.tokenizer.decode([token for token in ids if token not in stop], skip_special_tokens=True)


def _packed(kept: Kept) -> tuple[bytes, ...]:
    """The mask of each stored head, eight positions a byte."""
    return tuple(row.tobytes() for row in np.packbits(kept.cpu().numpy(), axis=1))


def _clock(model: LoadedModel) -> float:
    model.engine.sync()
    return time.perf_counter()
