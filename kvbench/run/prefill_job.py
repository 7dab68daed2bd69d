"""A prompt, or a context and its questions, and all cells: read once, cut once a cell, decoded many at a time."""

from collections.abc import Collection, Iterator, Mapping, Sequence

import torch

from kvbench.eviction.evict import reads_rows
from kvbench.models.loading.load import LoadedModel
from kvbench.models.prompts.prompt import Prompt, build, ends
from kvbench.records import KeptDetail, KeptSets, Row
from kvbench.run.evict_cell import CompressedCache, Shared, clock, cut, eviction_of, stepping_from_nothing, tile_of
from kvbench.run.make_rows import Answer, Cut, Made, Reading, answered, failed
from kvbench.run.memory import free_bytes, halving, needed, parts
from kvbench.run.plan import Cell, PrefillJob
from kvbench.tasks.sample import Sample

BROKEN = "the logits are no numbers (NaN or infinite) after {} new tokens"


def run_prefill_job(
    model: LoadedModel, unit: PrefillJob, samples: Sequence[Sample], environment: str, detail: KeptDetail = "none"
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
            prompts[sample.id] = prompt_of(model, sample, unit.cells[0])
        except ValueError as error:
            fail(unit.missing[sample.id], sample, error)
    asking = [sample for sample in samples if sample.id in prompts]
    if asking:
        try:
            reading = read(model, prompts, unit.cells)
            shared = Shared(reading.prefilled.cache, prompts[asking[0].id], unit.cells)
        except ValueError as error:
            for sample in asking:
                fail(unit.missing[sample.id], sample, error, prompts[sample.id])
            asking = []

    def fail_everywhere(cell: Cell, error: object) -> None:
        for sample in asking:
            fail([one for one in unit.missing[sample.id] if one.id == cell.id], sample, error, prompts[sample.id])

    def do(tile: list[Cell]) -> None:
        """Cut and answer; nothing is kept of a tile that did not come to its end."""
        held: dict[str, CompressedCache] = {}
        found: list[tuple[Sample, Cut, Answer]] = []
        for cell in tile:
            try:
                held[cell.id] = cut(model, cell, shared)
            except ValueError as error:
                fail_everywhere(cell, error)
        for sample in asking:
            own = [held[cell.id] for cell in unit.missing[sample.id] if cell.id in held]
            if sample is asking[-1]:
                held.clear()
            if own:
                answers = _answer(model, sample, prompts[sample.id], reading, own)
                found.extend((sample, did, answer) for did, answer in answers)
        for sample, did, answer in found:
            prompt = prompts[sample.id]
            if answer.error is not None:
                fail([did.cell], sample, answer.error, prompt)
                continue
            rows[sample.id, did.cell.id] = _scored(sample, prompt, reading, did, answer, environment)
            if detail != "none":
                kept.append(did.kept_by(sample, len(prompt.context), detail))

    for tile in _tiles(unit.cells, model.engine.tile) if asking else ():
        room = max(len(prompts[sample.id].question) + sample.max_new_tokens for sample in asking)
        for part in _parts(model, tile, reading, room):
            counters, most = model.engine.counters, halving(part, do, fail_everywhere)
            if most < len(part):
                counters.halved += 1
                counters.together = most
    return Made([rows[sample, cell.id] for sample, cells in unit.missing.items() for cell in cells], kept)


def _scored(sample: Sample, prompt: Prompt, reading: Reading, did: Cut, answer: Answer, environment: str) -> Row:
    """The row of an answer, or that of a failure where the benchmark's metric has no value for it."""
    try:
        return answered(sample, prompt, reading, did, answer, environment)
    except ValueError as error:
        return failed(did.cell, sample, f"{error}; it is {answer.text[:80]!r}", environment, prompt)


def prompt_of(model: LoadedModel, sample: Sample, cell: Cell) -> Prompt:
    """What the cell's model reads of a sample. Raises ValueError for a prompt that it cannot read."""
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


def read(model: LoadedModel, prompts: Mapping[int, Prompt], cells: Sequence[Cell]) -> Reading:
    """Read the one context of the prompts, with the evidence that any of the cells asks for."""
    (context,) = {prompt.context for prompt in prompts.values()}
    prompt = next(iter(prompts.values()))
    rules = [eviction_of(cell, prompt).policy for cell in cells if reads_rows(cell.policy, cell.score)]
    windows = {policy.rows(len(context)) for policy in rules}
    start, ids, block = clock(model), torch.tensor(context), cells[0].schedule.prefill_block
    if block is None:
        future_queries = {request for cell in cells if (request := cell.score.inputs.future_queries)}
        prefilled = model.engine.prefill(ids, windows, future_queries)
    else:
        (cell,) = cells
        stepping = stepping_from_nothing(cell, prompt)
        prefilled = model.engine.prefill_evicting(ids, stepping, block)
    return Reading(prefilled, clock(model) - start)


def _tiles(cells: Sequence[Cell], size: int) -> Iterator[list[Cell]]:
    """At most `size` cells that store the same heads in the same way and are all cut again while they answer, or none;
    in order.
    """

    def kind(cell: Cell) -> tuple[str, str, bool]:
        return cell.store, cell.policy.layout, cell.schedule.decode_every is not None

    for wanted in sorted({kind(cell) for cell in cells}):
        alike = [cell for cell in cells if kind(cell) == wanted]
        yield from (alike[start : start + size] for start in range(0, len(alike), size))


def _parts(model: LoadedModel, tile: list[Cell], reading: Reading, room: int) -> Iterator[list[Cell]]:
    """The cells of a tile, as many at a time as are planned to fit, and no more than did when memory ran out before."""
    engine, full = model.engine, reading.prefilled
    pair_bytes = full.full_bytes // max(1, full.cache.num_tokens)
    group = max((layer.query_heads // layer.cache_heads for layer in full.cache.evictable), default=1)
    most = min(engine.tile, engine.counters.together or engine.tile)
    return parts(
        tile, lambda cell: needed(cell, full.cache.num_tokens, room, pair_bytes, group), free_bytes(engine.device), most
    )


def _answer(
    model: LoadedModel, sample: Sample, prompt: Prompt, reading: Reading, held: list[CompressedCache]
) -> Iterator[tuple[Cut, Answer]]:
    """Answers of a tile. `held` is handed over: the tile has copies, and the list is emptied on the way."""
    cuts, start = [one.cut for one in held], clock(model)
    task = cuts[0].cell.task
    stop = ends(model.tokenizer, task, model.stop)
    tile = tile_of(model.engine, held, len(prompt.question) + sample.max_new_tokens)
    building = (clock(model) - start) / len(cuts)
    question = torch.tensor(prompt.question) if prompt.question else None
    generations = model.engine.generate(reading.prefilled, tile, stop, task.min_new_tokens, question)
    for cell, (did, generation, peak) in enumerate(zip(cuts, generations, tile.peak_bytes, strict=True)):
        text, error = _text(model, generation.ids, stop), tile.failures.get(cell)
        if generation.broken:
            error = BROKEN.format(len(generation.ids))
        yield did, Answer(generation, text, peak, building + generation.seconds, error)


def _text(model: LoadedModel, ids: Sequence[int], stop: Collection[int]) -> str:
    """The answer in words, without what ended it."""
    return model.tokenizer.decode([token for token in ids if token not in stop], skip_special_tokens=True)
