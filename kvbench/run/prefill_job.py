"""A prefill job: prefill a prompt, or a context with its questions; evict for each cell; decode in batches."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby

import numpy as np
import torch

from kvbench.eviction.schedule import TURN
from kvbench.eviction.scores.score import Summed
from kvbench.models.batch_invariance import BatchInvariance
from kvbench.models.decode.batch import DecodeBatch
from kvbench.models.decode.next_token import Sampled, Sampler, TeacherForced, greedy, uniforms
from kvbench.models.engine import DecodedAnswer, Engine, Generation
from kvbench.models.loading.load import LoadedModel
from kvbench.models.prompts.build import build
from kvbench.models.prompts.prompt import Prompt
from kvbench.models.prompts.reasoning import final_of_ids, turn_before
from kvbench.models.prompts.tokens import ending, ends, token_texts
from kvbench.records.row import Row
from kvbench.records.sidecars import KeptDetail
from kvbench.run import memory
from kvbench.run.cell import Cell
from kvbench.run.decode_batch import CellAnswer, batch_of, batches
from kvbench.run.evict_cell import HeldCache, SharedPrefill, clock, evict_cells, incremental_eviction
from kvbench.run.plan import PrefillJob
from kvbench.run.rows import (
    EvictionResult,
    JobResult,
    PrefillFacts,
    RowError,
    TimedPrefill,
    answer_columns,
    hash_ids,
    with_second_request,
)
from kvbench.support.errors import Fault, UserError
from kvbench.tasks.task import Final, Sample, Task

ONE_PASS = "all"
"""The `prefill_chunk` that the environment of a row names, where one pass read the whole prompt."""
BROKEN = "the logits are no numbers (NaN or infinite) after {} new tokens"


def run_prefill_job(
    model: LoadedModel,
    job: PrefillJob,
    samples: Sequence[Sample],
    environment: str,
    detail: KeptDetail = "none",
    decoding: "type[DecodeJob] | None" = None,
) -> JobResult:
    """Return rows of a job, by sample and cell in the order of the job. `samples` are those that it names.

    Questions of one context start from the same full cache, evicted from once for each cell. What a sample or a cell
    cannot do (a prompt too long, a budget below the protected tokens, NaN in the cache, a faulty score) becomes a row
    with its `error`; the others go on.

    decoding: what follows the prefill; by default one answer to each question.
    """
    result = JobResult(job, environment, detail)
    prompted, prompts = prompts_of(model, samples, result)
    cells = job.cells if prompted else ()
    while cells:
        part, decode_job = result.part(), None  # the cache of a failed attempt is freed
        try:
            decode_job = begin_job(model, prompted, prompts, cells, part, decoding)
            if decode_job is not None:
                decode_job.run()
            result.add(part)
            break
        except Fault as fault:
            faulty, error = [cell for cell in cells if fault.part in cell.eviction.parts], RowError.of(fault)
            if not faulty:
                raise
            for sample in prompted:
                result.fail(sample, error, faulty, prompts[sample.id])
            cells = [cell for cell in cells if cell not in faulty]
    result.sort()
    return result


def prompts_of(
    model: LoadedModel, samples: Sequence[Sample], result: JobResult
) -> tuple[list[Sample], dict[int, Prompt]]:
    """Return the samples of a job that have a prompt, and the prompts by sample. `result` gets rows with an error for
    the others.
    """
    prompts, cell = dict[int, Prompt](), result.job.cells[0]
    for sample in samples:
        try:
            prompts[sample.id] = prompt_of(model, sample, cell)
        except ValueError as error:
            result.fail(sample, str(error))
    prompted = [sample for sample in samples if sample.id in prompts]
    if cell.task.forces_answers:
        prompted = [replace(sample, max_new_tokens=len(prompts[sample.id].answer)) for sample in prompted]
    if result.detail == "positions":
        result.token_texts = {each.sha256: token_texts(model.tokenizer, each.prefill) for each in prompts.values()}
    return prompted, prompts


def begin_job(
    model: LoadedModel,
    samples: Sequence[Sample],
    prompts: Mapping[int, Prompt],
    cells: Sequence[Cell],
    result: JobResult,
    decoding: "type[DecodeJob] | None" = None,
) -> "DecodeJob | None":
    """Prefill for cells of a job, and return what follows, if anything. `result` gets rows with an error for cells
    that cannot read the prompt.

    Raises Fault for a part of some of the cells, such as a score; the others may begin again.
    """
    reason: str | RowError
    try:
        timed_prefill, read, reason = _prefill_what_fits(model, prompts, cells)
    except Fault:
        raise
    except ValueError as error:
        timed_prefill, read, reason = None, (), RowError.of(error)
    unread = [cell for cell in cells if cell not in read]
    for sample in samples:
        result.fail(sample, reason, unread, prompts[sample.id])
    if timed_prefill is None:
        return None
    result.chunk = timed_prefill.chunk
    prefilled = timed_prefill.prefilled
    shared = SharedPrefill(prefilled.cache, prompts[samples[0].id], read, summed=prefilled.seconds)
    return (decoding or DecodeJob)(model, samples, prompts, timed_prefill, shared, result)


def _prefill_what_fits(
    model: LoadedModel, prompts: Mapping[int, Prompt], cells: Sequence[Cell]
) -> tuple[TimedPrefill | None, Sequence[Cell], str]:
    """Prefill, on a GPU in one pass where that fits; when memory runs out, in smaller chunks, then without the cells
    for which all queries are recorded.

    Returns what was read, the cells it was read for, and why not for the others. A chunk for which memory ran out is
    not tried again with a prompt as long or longer, unless no smaller one is left.
    """
    engine, prompt = model.engine, next(iter(prompts.values()))
    oom_at, tokens, usual = engine.counters.oom_at, len(prompt.prefill), engine.prefill_chunk
    chunks = list(dict.fromkeys((chunk_of(engine, prompt, cells), usual)))
    if _may_choose_chunk(engine, cells[0]):
        chunks += [chunk for chunk in (usual // 4, usual // 16) if 0 < chunk < tokens]
    light = [cell for cell in cells if tokens not in _recorded(cell, prompt)[0]]
    reason = ""
    for part in (cells, light) if 0 < len(light) < len(cells) else (cells,):
        records_all = len(part) > len(light)
        for chunk in chunks:
            size = chunk if chunk <= usual else 0
            fewest = oom_at.get((size, records_all), math.inf)
            if tokens >= fewest and chunk != chunks[-1]:
                continue
            read = memory.catch_oom(partial(prefill, model, prompts, part, chunk), engine)
            if isinstance(read, TimedPrefill):
                return (read if chunk == usual else replace(read, chunk=size or ONE_PASS)), part, reason
            reason, oom_at[size, records_all] = read, min(tokens, fewest)
    return None, (), reason


def chunk_of(engine: Engine, prompt: Prompt, cells: Sequence[Cell]) -> int:
    """Return how many tokens a pass over a prompt should read for these cells: all, or as many as usual."""
    recorded = [_recorded(cell, prompt) for cell in cells]
    rows, sums = set[int]().union(*(rows for rows, _ in recorded)), {each for _, each in recorded if each}
    tokens, chooses = len(prompt.prefill), _may_choose_chunk(engine, cells[0])
    at_once = chooses and memory.reads_at_once(engine, tokens, sum(rows), len(sums))
    return tokens if at_once else engine.prefill_chunk


def _may_choose_chunk(engine: Engine, cell: Cell) -> bool:
    """Return whether the number of tokens of a pass changes no more than last bits."""
    return engine.rope is None and cell.score.inputs.hidden_states != "prompt" and cell.schedule.prefill_block is None


@dataclass(frozen=True)
class DecodeJob:
    """Work after the prefill of a job: every cell evicts, and answers the question of every sample that lacks it."""

    model: LoadedModel
    samples: Sequence[Sample]
    prompts: Mapping[int, Prompt]
    prefill: TimedPrefill
    shared: SharedPrefill
    result: JobResult

    def run(self) -> None:
        """Decode as many cells at a time as fit into a batch and should fit into memory."""
        engine, full, cells = self.model.engine, self.prefill.prefilled, self.shared.cells
        num_tokens = full.cache.num_tokens
        pair_bytes = full.full_bytes // max(1, num_tokens)
        longest = max(len(self.prompts[sample.id].question) + sample.own_tokens for sample in self.samples)
        state = full.cache.exempt["recurrent_bytes"] or 0
        group_size, number, each = self._limit_rankings()

        def bytes_of(cell_answer: CellAnswer) -> int:
            return memory.cell_bytes(cell_answer[0], num_tokens, longest, pair_bytes, group_size) + state

        draws = {sample.id % self.draws for sample in self.samples}
        for cell_answers in batches([(cell, draw) for draw in sorted(draws) for cell in cells], engine.max_batch):
            later = max(0, min(number, self.shared.most_rankings) - len(self.shared.rankings)) * each
            invariance = engine.batch_invariance or BatchInvariance()
            later += state * invariance.rows(engine.max_batch, engine.max_batch, 1)  # padded
            free, most = memory.free_beside(engine, self.devices) - later, memory.most_together(engine)
            for part in memory.split_to_fit(cell_answers, bytes_of, free, most):
                memory.halve_on_oom(part, self._evict_and_answer, partial(self._fail, self.result), engine)

    @property
    def devices(self) -> list[torch.device]:
        """Of the layers of the cache."""
        return [layer.keys.device for layer in self.shared.cache.layers]

    def _limit_rankings(self) -> tuple[int, int, int]:
        """Hold no more rankings than fit. Return query heads per cache head, the cells' rankings, and bytes of each."""
        cache, cells = self.shared.cache, self.shared.cells
        group_size = max((layer.query_heads // layer.cache_heads for layer in cache.evictable), default=1)
        heads = sum(layer.cache_heads for layer in cache.evictable)
        number, each = memory.count_rankings(cells, cache.num_tokens, heads, group_size)
        fitting = int(memory.RANKINGS_SHARE * memory.free_bytes(self.devices) / max(1, each))
        self.shared.most_rankings = max(1, min(number, fitting))
        return group_size, number, each

    @property
    def draws(self) -> int:
        """Answers to each prompt."""
        return self.shared.cells[0].task.samples_per_prompt

    def evict(self) -> list[HeldCache]:
        """Return the caches of all cells, for the only answer to one prompt. Cells that cannot evict have a row that
        says so.

        Raises RuntimeError if memory runs out.
        """
        self._limit_rankings()
        return list(self._evict([(cell, 0) for cell in self.shared.cells], self.result, copy=True).values())

    def _evict(self, cell_answers: Sequence[CellAnswer], part: JobResult, copy: bool = False) -> dict[str, HeldCache]:
        """Return the caches of cells, by id; rows in `part` for those that cannot evict. copy: as of `evict_cells`."""
        held_caches, cells = dict[str, HeldCache](), list({cell.id: cell for cell, _ in cell_answers}.values())
        for cell, outcome in zip(cells, evict_cells(self.model, cells, self.shared, copy), strict=True):
            if isinstance(outcome, HeldCache):
                held_caches[cell.id] = outcome
                continue
            for cell_answer in cell_answers:
                if cell_answer[0] is cell:
                    self._fail(part, cell_answer, outcome)
        return held_caches

    def _evict_and_answer(self, cell_answers: list[CellAnswer]) -> None:
        """Evict and answer. If memory runs out on the way, nothing is recorded of these answers."""
        part = self.result.part()
        held_caches = self._evict(cell_answers, part)
        questions = self.together()
        for samples in questions:
            caches, missing_samples = list[HeldCache](), list[list[Sample]]()
            for cell, draw in cell_answers:
                drawn = [sample for sample in samples if sample.id % self.draws == draw]
                missing = [sample for sample in drawn if (cell.id, sample.id) in part.job.places]
                if missing and cell.id in held_caches:
                    caches.append(held_caches[cell.id])
                    missing_samples.append(missing)
            if samples is questions[-1]:
                held_caches.clear()  # the decode batch frees each cache once it has its copy
            if caches:
                self._answer(caches, missing_samples, part)
        self.result.add(part)

    def together(self) -> list[list[Sample]]:
        """Return the samples that one decode batch answers, batch by batch: the answers to one question."""
        return [list(samples) for _, samples in groupby(self.samples, lambda sample: sample.id // self.draws)]

    def _answer(self, caches: list[HeldCache], samples: Sequence[Sequence[Sample]], part: JobResult) -> None:
        """Decode one batch, each cache for its samples, and record their rows. The list of caches is emptied."""
        model, evictions, start = self.model, [cache.result for cache in caches], clock(self.model)
        lasts, task = [each[-1] for each in samples], evictions[0].cell.task
        batch = batch_of(model.engine, caches, self.room(lasts), len(self.prompts[lasts[0].id].first_question))
        layout_seconds = (clock(model) - start) / len(evictions)
        stop = ends(model.tokenizer, task, model.stop)
        answers = self.decode(batch, task, lasts, stop)
        if model.engine.gpus and batch.stepped is not None:
            part.stepped |= {eviction.cell.id: batch.stepped for eviction in evictions}
        del batch  # a second request may need its memory
        for eviction, missing, cell_answers in zip(evictions, samples, answers, strict=True):
            seconds = layout_seconds / len(cell_answers)
            for sample in missing:
                subject = sample, self.prompts[sample.id], eviction, self.prefill.facts
                record_answer(model, part, *subject, cell_answers[sample.id], stop, seconds)

    def room(self, samples: Sequence[Sample]) -> int:
        """Return the most tokens that follow what the cells of a batch kept, each up to its sample's answer."""
        return max(len(self.prompts[sample.id].question) + sample.own_tokens for sample in samples)

    def decode(
        self, batch: DecodeBatch, task: Task, samples: Sequence[Sample], stop: Collection[int]
    ) -> list[dict[int, DecodedAnswer]]:
        """Return the answers to one question, of each cell to its sample, by sample."""
        prompt, max_new_tokens = self.prompts[samples[0].id], samples[0].max_new_tokens
        choose: Sampler = greedy
        if task.temperature:
            drawn = samples[0].drawn
            numbers = [self.uniforms(sample.id, drawn + max_new_tokens)[drawn:] for sample in samples]
            on_device = torch.tensor(np.stack(numbers, axis=1), device=self.model.engine.device)
            choose = Sampled(task.temperature, task.top_p, on_device)
        engine, question = self.model.engine, torch.tensor(prompt.question) if prompt.question else None
        forced = None
        if task.forces_answers:
            choose, stop = (forced := TeacherForced(prompt.answer, len(samples), engine.device)), ()
        generations = engine.generate(self.prefill.prefilled, batch, stop, task.min_new_tokens, question, choose)
        prompts = [self.prompts[sample.id] for sample in samples]
        answers = answers_of(batch, generations, prompts, len(prompt.question))
        for cell, answer in enumerate(answers):
            if forced is not None and answer.error is None:
                answer.nll = forced.losses[:, cell].double().mean().item()
        return [{sample.id: answer} for sample, answer in zip(samples, answers, strict=True)]

    def uniforms(self, sample: int, steps: int) -> np.ndarray:
        """Return the random numbers that draw the first tokens of a sample's answer."""
        return uniforms(self.shared.cells[0].task.seed, *divmod(sample, self.draws), steps)

    def _fail(self, result: JobResult, cell_answer: CellAnswer, error: str | RowError) -> None:
        """Add rows with an error for every sample of this draw that lacks the cell."""
        for sample in self.samples:
            if sample.id % self.draws == cell_answer[1]:
                result.fail(sample, error, cell_answer[:1], self.prompts[sample.id])


def answers_of(
    batch: DecodeBatch, generations: Sequence[Generation], prompts: Sequence[Prompt], first: int
) -> list[DecodedAnswer]:
    """Return the answer of every cell of a batch that has been decoded, each to its prompt, or why it has none.

    first: tokens that the batch had read before the answers.
    """
    answers = []
    for cell, (generation, prompt, peak) in enumerate(zip(generations, prompts, batch.peak_bytes, strict=True)):
        error = BROKEN.format(len(generation.ids)) if generation.broken else batch.failures.get(cell)
        read = batch.bytes_read(cell, first, len(generation.ids) - 1)
        answers.append(DecodedAnswer(generation, error, prompt.tokens, peak, batch.evictions(cell), read))
    return answers


def record_answer(
    model: LoadedModel,
    result: JobResult,
    sample: Sample,
    prompt: Prompt,
    eviction: EvictionResult,
    prefill: PrefillFacts,
    answer: DecodedAnswer,
    stop: Collection[int],
    layout_seconds: float,
) -> None:
    """Add the row of an answer, or with the error that it ended in."""
    cell = eviction.cell
    if answer.error is not None:
        result.fail(sample, answer.error, [cell], prompt)
        return
    generation = answer.generation
    ids = [token for token in generation.ids if token not in stop]
    text = model.tokenizer.decode(ids, skip_special_tokens=True)
    columns = dict(prefill.columns) | {
        "evict_seconds": eviction.seconds,
        "prompt_tokens": answer.tokens,
        "peak_bytes": answer.peak_bytes,
        "decode_evictions": answer.evictions,
        "read_bytes": None if answer.read is None else round(answer.read.pairs),
        "index_bytes": None if answer.read is None else round(answer.read.index),
        "decode_seconds": layout_seconds + generation.seconds,
        "new_tokens": len(generation.ids),
        "prediction": text,
        "output_sha256": hash_ids(generation.ids),
        "top2_margin": generation.top2_margin,
    }
    final, ended = Final(text), None
    if answer.nll is None:
        ended = ending(model.tokenizer, cell.task, model.stop, generation.ids)
        turn = turn_before(prompt, sample, ended)
        final = final_of_ids(model.tokenizer, cell.task.reasoning, turn, ids, text)
    columns |= answer_columns(ended, final)
    try:
        if answer.nll is not None:
            columns |= {"value": answer.nll, "prediction": None}
        elif final.text is not None and (second := cell.task.follow_up(sample, final.text)):
            columns |= with_second_request(columns, second_request(model, cell, second, result.environment))
        else:
            columns["value"] = cell.task.value(final.text, sample)
        result.record(sample, prompt, eviction, prefill.num_tokens, **columns)
    except ValueError as error:  # the metric has no value for it, or the second request could not be answered
        result.fail(sample, f"{error}; it is {text[:80]!r}", [cell], prompt)
        result.keep(sample, eviction, prefill.num_tokens)


def second_request(model: LoadedModel, cell: Cell, second: Sample, environment: str) -> Row:
    """Return the row of a second request, its own prompt for the cell. Raises UserError if it has an error."""
    (row,) = run_prefill_job(model, PrefillJob({second.id: (cell,)}), [second], environment).rows
    if row.error is not None:
        raise UserError(f"{row.error} (in the second request, after the first answer)")
    return row


def prompt_of(model: LoadedModel, sample: Sample, cell: Cell) -> Prompt:
    """Return the prompt of a sample for the cell's model. Raises ValueError for a prompt that it cannot read."""
    max_tokens, spec, after = model.max_length - sample.max_new_tokens, cell.model, cell.schedule.evict_after
    prompt = build(
        model.tokenizer, sample, cell.task, max_tokens, chat=spec.chat, system=spec.system, evict_after=after
    )
    if cell.task.forces_answers and not 0 < len(prompt.answer) <= sample.max_new_tokens:
        raise UserError(
            f"the recorded answer has {len(prompt.answer)} tokens: allowed: 1 to task.max_new_tokens="
            f"{sample.max_new_tokens}"
        )
    model.engine.check_length(len(prompt.prefill), len(prompt.question) + sample.max_new_tokens - 1)
    return prompt


def prefill(
    model: LoadedModel, prompts: Mapping[int, Prompt], cells: Sequence[Cell], chunk: int | None = None
) -> TimedPrefill:
    """Read what the prompts share, and record the score inputs that any of the cells needs."""
    (shared,) = {prompt.prefill for prompt in prompts.values()}
    prompt = next(iter(prompts.values()))
    recorded = [_recorded(cell, prompt) for cell in cells]
    windows, summed = set[int]().union(*(rows for rows, _ in recorded)), {each for _, each in recorded if each}
    start, ids, block = clock(model), torch.tensor(shared), cells[0].schedule.prefill_block
    if block is None:
        prefilled = model.engine.prefill(ids, windows, [cell.score for cell in cells], chunk, summed)
    else:
        cell = cells[0]  # the others differ in their holders alone
        if block == TURN:
            prefilled = model.engine.prefill_turns(ids, partial(incremental_eviction, cell, prompt), prompt.blocks)
        else:
            prefilled = model.engine.prefill_evicting(ids, incremental_eviction(cell, prompt), block)
    return TimedPrefill(prefilled, clock(model) - start - sum(prefilled.seconds.values()))


def _recorded(cell: Cell, prompt: Prompt) -> tuple[set[int], Summed | None]:
    """Return how many of the newest queries of a prompt are recorded for a cell, and what is summed over all."""
    return memory.observed_rows(
        cell,
        prompt.prefix_tokens,
        len(prompt.prefill),
        question_tokens=prompt.question_tokens,
        suffix_tokens=prompt.suffix_tokens,
    )
