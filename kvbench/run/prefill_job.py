"""A prefill job: prefill a prompt, or a context with its questions; evict for each cell; decode in batches."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
import torch

from kvbench.models.batch_invariance import BatchInvariance
from kvbench.models.decode.conversation import Question, converse
from kvbench.models.decode.next_token import Choice, Choose, Drawn, greedy, uniforms
from kvbench.models.engine import Generation
from kvbench.models.loading.load import LoadedModel
from kvbench.models.prompts.prompt import Prompt, build, ends, token_texts
from kvbench.records import KeptDetail, Row
from kvbench.run.evict_cell import (
    CompressedCache,
    SharedPrefill,
    batch_of,
    clock,
    evict_cell,
    incremental_eviction,
)
from kvbench.run.memory import (
    RANKINGS,
    attempt,
    cell_bytes,
    free_bytes,
    halving,
    most_together,
    observed_rows,
    rankings_of,
    split_to_fit,
)
from kvbench.run.plan import Cell, PrefillJob
from kvbench.run.rows import (
    EvictionResult,
    JobResult,
    TimedPrefill,
    error_row,
    hash_ids,
    measured_row,
    with_second_request,
)
from kvbench.support.errors import UserError
from kvbench.tasks.task import Sample

Unit = tuple[Cell, int]
"""A cell, and which of the answers to each prompt, from 0."""
BROKEN = "the logits are no numbers (NaN or infinite) after {} new tokens"


def run_prefill_job(
    model: LoadedModel, job: PrefillJob, samples: Sequence[Sample], environment: str, detail: KeptDetail = "none"
) -> JobResult:
    """Rows of a job, by sample and cell in the order of the job. `samples` are those that it names.

    Questions of one context start from the same full cache, evicted from once for each cell. What a sample or a cell
    cannot do (a prompt too long, a budget below the protected tokens, NaN in the cache) becomes a row with its `error`;
    the others go on.
    """
    result = JobResult()
    prompts: dict[int, Prompt] = {}
    for sample in samples:
        try:
            prompts[sample.id] = prompt_of(model, sample, job.cells[0])
        except ValueError as error:
            result.rows += [error_row(cell, sample, str(error), environment) for cell in job.missing[sample.id]]
    if detail == "positions":
        result.token_texts = {
            prompt.sha256: token_texts(model.tokenizer, prompt.context) for prompt in prompts.values()
        }
    prompted = [sample for sample in samples if sample.id in prompts]
    if prompted:
        try:
            timed_prefill, cells, reason = _prefill_what_fits(model, prompts, job.cells)
        except ValueError as error:
            timed_prefill, cells, reason = None, (), str(error)
        unread = {cell.id for cell in job.cells} - {cell.id for cell in cells}
        for sample in prompted:
            failed = (cell for cell in job.missing[sample.id] if cell.id in unread)
            result.rows += [error_row(cell, sample, reason, environment, prompts[sample.id]) for cell in failed]
        left = job.without({(cell, sample) for cell in unread for sample in job.missing})
        prompted = [sample for sample in prompted if sample.id in left.missing]
        if timed_prefill is not None and prompted:
            result.block = timed_prefill.block
            shared = SharedPrefill(timed_prefill.prefilled.cache, prompts[prompted[0].id], cells)
            _Decoding(model, left, prompted, prompts, timed_prefill, shared, environment, detail, result).run()
    result.sort(job)
    return result


def _prefill_what_fits(
    model: LoadedModel, prompts: Mapping[int, Prompt], cells: Sequence[Cell]
) -> tuple[TimedPrefill | None, Sequence[Cell], str]:
    """Prefill; when memory runs out, in smaller blocks, then without the cells for which all queries are recorded.

    Returns what was read, the cells it was read for, and why not for the others. A block for which memory ran out is
    not tried again with a prompt as long or longer, unless no smaller one is left.
    """
    engine, prompt = model.engine, next(iter(prompts.values()))
    exhausted, tokens, blocks = engine.counters.exhausted, len(prompt.context), [engine.block]
    in_one_pass = engine.rope is not None or cells[0].score.inputs.hidden_states == "prompt"
    if not in_one_pass and cells[0].schedule.prefill_block is None:  # otherwise the block changes the result
        blocks += [block for block in (engine.block // 4, engine.block // 16) if 0 < block < tokens]
    light = [cell for cell in cells if tokens not in observed_rows(cell, prompt.head, tokens, prompt.asked)]
    reason = ""
    for part in (cells, light) if 0 < len(light) < len(cells) else (cells,):
        records_all = len(part) > len(light)
        for block in blocks:
            fewest = exhausted.get((block, records_all), math.inf)
            if tokens >= fewest and block != blocks[-1]:
                continue
            read = attempt(partial(prefill, model, prompts, part, block))
            if isinstance(read, TimedPrefill):
                return (read if block == engine.block else replace(read, block=block)), part, reason
            reason, exhausted[block, records_all] = read, min(tokens, fewest)
    return None, (), reason


@dataclass(frozen=True)
class _Decoding:
    """What follows the prefill of a job: every cell evicts, and answers the question of every sample that lacks it."""

    model: LoadedModel
    job: PrefillJob
    samples: Sequence[Sample]
    prompts: Mapping[int, Prompt]
    prefill: TimedPrefill
    shared: SharedPrefill
    environment: str
    detail: KeptDetail
    result: JobResult

    def run(self) -> None:
        """Decode as many cells at a time as fit into a batch and should fit into memory."""
        engine, full = self.model.engine, self.prefill.prefilled
        devices = [layer.keys.device for layer in full.cache.layers]
        num_tokens = full.cache.num_tokens
        pair_bytes = full.full_bytes // max(1, num_tokens)
        group = max((layer.query_heads // layer.cache_heads for layer in full.cache.evictable), default=1)
        longest = max(len(self.prompts[sample.id].question) + sample.own_tokens for sample in self.samples)
        state = full.cache.exempt["recurrent_bytes"] or 0

        def bytes_of(unit: Unit) -> int:
            return cell_bytes(unit[0], num_tokens, longest, pair_bytes, group) + state

        heads = sum(layer.cache_heads for layer in full.cache.evictable)
        number, each = rankings_of(self.job.cells, num_tokens, heads, group)
        self.shared.most_rankings = max(1, min(number, int(RANKINGS * free_bytes(devices) / max(1, each))))
        draws = {sample.id % self.draws for sample in self.samples}
        for units in batches([(cell, draw) for draw in sorted(draws) for cell in self.job.cells], engine.tile):
            later = max(0, min(number, self.shared.most_rankings) - len(self.shared.rankings)) * each
            later += state * (engine.batch_invariance or BatchInvariance()).rows(engine.tile, engine.tile, 1)  # padded
            for part in split_to_fit(units, bytes_of, free_bytes(devices) - later, most_together(engine)):
                halving(part, self._evict_and_answer, self._fail, engine.counters)

    @property
    def draws(self) -> int:
        """Answers to each prompt."""
        return self.job.cells[0].task.samples_per_prompt

    def _evict_and_answer(self, units: list[Unit]) -> None:
        """Evict and answer. If memory runs out on the way, nothing is recorded of these units."""
        part = JobResult()
        missing = {(cell.id, sample) for sample, cells in self.job.missing.items() for cell in cells}
        compressed: dict[str, CompressedCache] = {}
        for cell in {cell.id: cell for cell, _ in units}.values():
            try:
                compressed[cell.id] = evict_cell(self.model, cell, self.shared)
            except ValueError as error:
                part.rows += [row for unit in units if unit[0] is cell for row in self._error_rows(unit, str(error))]
        if self.job.cells[0].task.turns == "own":
            self._converse(units, compressed, part)
            self.result.add(part)
            return
        by_question = [list(samples) for _, samples in groupby(self.samples, lambda sample: sample.id // self.draws)]
        for samples in by_question:
            entries = [
                (sample, compressed[cell.id])
                for cell, draw in units
                for sample in samples
                if sample.id % self.draws == draw and cell.id in compressed and (cell.id, sample.id) in missing
            ]
            if samples is by_question[-1]:
                compressed.clear()  # the decode batch frees each cache once it has its copy
            if entries:
                self._answer(entries, part)
        self.result.add(part)

    def _answer(self, entries: list[tuple[Sample, CompressedCache]], part: JobResult) -> None:
        """Decode the answers of one batch to one question. The list is emptied."""
        samples, evictions = [sample for sample, _ in entries], [cache.result for _, cache in entries]
        model, prompt, prefilled = self.model, self.prompts[samples[0].id], self.prefill.prefilled
        task, start, max_new_tokens = evictions[0].cell.task, clock(model), samples[0].max_new_tokens
        stop = ends(model.tokenizer, task, model.stop)
        caches = [cache for _, cache in entries]
        entries.clear()
        batch = batch_of(model.engine, caches, len(prompt.question) + max_new_tokens)
        layout_seconds = (clock(model) - start) / len(evictions)
        question = torch.tensor(prompt.question) if prompt.question else None
        choose: Choose = greedy
        if task.temperature:
            drawn = samples[0].drawn
            numbers = [self._uniforms(sample.id, drawn + max_new_tokens)[drawn:] for sample in samples]
            choose = Drawn(
                task.temperature, task.top_p, torch.tensor(np.stack(numbers, axis=1), device=model.engine.device)
            )
        generations = model.engine.generate(prefilled, batch, stop, task.min_new_tokens, question, choose)
        peaks, failures = batch.peak_bytes, batch.failures
        del batch  # a second request may need its memory
        for index, (sample, eviction, generation, peak) in enumerate(
            zip(samples, evictions, generations, peaks, strict=True)
        ):
            failure = BROKEN.format(len(generation.ids)) if generation.broken else failures.get(index)
            self._record(part, sample, eviction, generation, failure, stop, layout_seconds, peak_bytes=peak)

    def _converse(self, units: Sequence[Unit], compressed: dict[str, CompressedCache], part: JobResult) -> None:
        """Decode conversations, each up to the last turn that lacks its row, and record the rows that are missing."""
        model, start, draws = self.model, clock(self.model), self.draws
        entries = [
            (compressed[cell.id], samples)
            for cell, draw in units
            if cell.id in compressed and (samples := self._lacking((cell, draw)))
        ]
        compressed.clear()
        if not entries:
            return
        caches, lacking = [cache for cache, _ in entries], [samples for _, samples in entries]
        entries.clear()
        evictions, lasts = [cache.result for cache in caches], [samples[-1] for samples in lacking]
        turns = [zip(self.prompts[last.id].turns, (*last.earlier, last), strict=True) for last in lasts]
        questions = [[Question(ids, turn.max_new_tokens) for ids, turn in each] for each in turns]
        numbers = [range(last.id - draws * len(last.earlier), last.id + 1, draws) for last in lasts]
        task, prefilled = evictions[0].cell.task, self.prefill.prefilled
        room = max(len(self.prompts[last.id].question) + last.own_tokens for last in lasts)
        room = min(room, model.max_length - prefilled.cache.num_tokens)
        batch = batch_of(model.engine, caches, room)
        layout_seconds = (clock(model) - start) / len(lasts)
        stop = ends(model.tokenizer, task, model.stop)
        drawn = [
            [self._uniforms(sample, turn.max_new_tokens + 1) for sample, turn in zip(*each, strict=True)]
            for each in zip(numbers, questions, strict=True)
            if task.temperature
        ]  # one more than an answer has: a cell that has ended is still asked

        def choose(logits: torch.Tensor, places: Sequence[tuple[int, int]]) -> Choice:
            if not task.temperature:
                return greedy(logits)
            row = [turns[turn][step] for turns, (turn, step) in zip(drawn, places, strict=True)]
            return Drawn(task.temperature, task.top_p, torch.tensor([row], device=logits.device))(logits, 0)

        options = stop, task.min_new_tokens, choose, model.max_length
        for number, answers in enumerate(converse(model.engine, prefilled, batch, questions, *options)):
            of_sample = dict(zip(numbers[number], answers, strict=True))
            for sample in lacking[number]:
                answer = of_sample[sample.id]
                measured = {"peak_bytes": answer.peak_bytes, "prompt_tokens": answer.tokens}
                outcome = answer.generation, answer.error, stop, layout_seconds / len(answers)
                self._record(part, sample, evictions[number], *outcome, **measured)

    def _record(
        self,
        part: JobResult,
        sample: Sample,
        eviction: EvictionResult,
        generation: Generation,
        failure: str | None,
        stop: Collection[int],
        layout_seconds: float,
        **measured: Any,
    ) -> None:
        """Add the row of an answer, or with the `failure` that it ended in."""
        prompt, prefilled, model = self.prompts[sample.id], self.prefill.prefilled, self.model
        if failure is not None:
            part.rows.append(error_row(eviction.cell, sample, failure, self.environment, prompt))
            return
        ids, task = [token for token in generation.ids if token not in stop], eviction.cell.task
        text = model.tokenizer.decode(ids, skip_special_tokens=True)
        answer = measured | {
            "decode_seconds": layout_seconds + generation.seconds,
            "new_tokens": len(generation.ids),
            "prediction": text,
            "output_sha256": hash_ids(generation.ids),
            "top2_margin": generation.top2_margin,
        }
        try:
            if second := task.follow_up(sample, text):
                answer |= with_second_request(answer, self._asked_again(eviction.cell, second))
            else:
                answer["value"] = task.score(text, sample)
            row = measured_row(
                sample,
                prompt,
                eviction,
                prefilled.cache.num_tokens,
                self.environment,
                **prefilled.cache.exempt,
                full_cache_bytes=prefilled.full_bytes,
                prefill_seconds=self.prefill.seconds,
                evict_seconds=eviction.seconds,
                **answer,
            )
        except ValueError as error:  # the metric has no value for it, or the second request could not be answered
            row = error_row(eviction.cell, sample, f"{error}; it is {text[:80]!r}", self.environment, prompt)
        part.rows.append(row)
        if self.detail != "none":
            part.kept.append(eviction.kept_sets(sample, len(prompt.context), self.detail))

    def _uniforms(self, sample: int, steps: int) -> np.ndarray:
        return uniforms(self.job.cells[0].task.seed, *divmod(sample, self.draws), steps)

    def _asked_again(self, cell: Cell, second: Sample) -> Row:
        """The row of a second request, a prompt of its own for the same cell. Raises UserError if it has an error."""
        (row,) = run_prefill_job(self.model, PrefillJob({second.id: (cell,)}), [second], self.environment).rows
        if row.error is not None:
            raise UserError(f"{row.error} (in the second request, after the first answer)")
        return row

    def _fail(self, unit: Unit, error: str) -> None:
        self.result.rows.extend(self._error_rows(unit, error))

    def _error_rows(self, unit: Unit, error: str) -> list[Row]:
        """Rows with an error for every sample of this draw that lacks the cell."""
        return [
            error_row(unit[0], sample, error, self.environment, self.prompts[sample.id])
            for sample in self._lacking(unit)
        ]

    def _lacking(self, unit: Unit) -> list[Sample]:
        """The samples of a draw that lack the row of a cell, in ascending order."""
        cell, draw = unit
        missing = self.job.missing
        return [
            sample
            for sample in self.samples
            if sample.id % self.draws == draw and any(each.id == cell.id for each in missing[sample.id])
        ]


def prompt_of(model: LoadedModel, sample: Sample, cell: Cell) -> Prompt:
    """The prompt of a sample for the cell's model. Raises ValueError for a prompt that it cannot read."""
    max_tokens, spec, after = model.max_length - sample.max_new_tokens, cell.model, cell.schedule.evict_after
    prompt = build(
        model.tokenizer, sample, cell.task, max_tokens, chat=spec.chat, system=spec.system, evict_after=after
    )
    model.engine.check_length(len(prompt.context), len(prompt.question) + sample.max_new_tokens - 1)
    return prompt


def prefill(
    model: LoadedModel, prompts: Mapping[int, Prompt], cells: Sequence[Cell], tokens_per_pass: int | None = None
) -> TimedPrefill:
    """Prefill the one context of the prompts, and record the score inputs that any of the cells needs."""
    (context,) = {prompt.context for prompt in prompts.values()}
    prompt = next(iter(prompts.values()))
    windows = set[int]().union(*(observed_rows(cell, prompt.head, len(context), prompt.asked) for cell in cells))
    start, ids, block = clock(model), torch.tensor(context), cells[0].schedule.prefill_block
    if block is None:
        prefilled = model.engine.prefill(ids, windows, [cell.score for cell in cells], tokens_per_pass)
    else:
        (cell,) = cells
        prefilled = model.engine.prefill_evicting(ids, incremental_eviction(cell, prompt), block)
    return TimedPrefill(prefilled, clock(model) - start)


def batches(units: Sequence[Unit], size: int) -> Iterator[list[Unit]]:
    """At most `size` units that can be decoded together, in order: all evict from the answer too, or none does."""

    def kind(unit: Unit) -> tuple[str, str, bool]:
        cell = unit[0]
        return cell.store, cell.policy.layout, cell.schedule.decode_every is not None

    for _, group in groupby(sorted(units, key=kind), kind):
        alike = list(group)
        yield from (alike[start : start + size] for start in range(0, len(alike), size))
