"""Texts whose tokens are scored: all cells read a text together, and each evicts from its cache as the cache grows."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

import torch
from jaxtyping import Float
from torch import Tensor

from kvbench.eviction.incremental import IncrementalEviction, kept_of
from kvbench.models.decode.evicting_cache import EvictingCache
from kvbench.models.loading.load import LoadedModel
from kvbench.models.prompts.prompt import Prompt
from kvbench.models.prompts.raw_text import begin, begin_continuation
from kvbench.models.prompts.tokens import TokensOf
from kvbench.records.sidecars import Curve, KeptDetail
from kvbench.run.cell import Cell
from kvbench.run.evict_cell import EvictedCell, clock, eviction_of, measure
from kvbench.run.local import OneByOne
from kvbench.run.memory import halve_on_oom, most_together
from kvbench.run.plan import PrefillGroup, PrefillJob
from kvbench.run.rows import JobResult, RowError
from kvbench.support.errors import UserError
from kvbench.support.quantity import count_noun
from kvbench.tasks.task import Sample

if TYPE_CHECKING:
    from kvbench.tasks.likelihood import Likelihood

BROKEN = "the logits are no numbers (NaN or infinite) at token {}"


class Perplexity(OneByOne):
    """Scores the tokens of texts while every cell evicts from its cache."""

    @classmethod
    def when(cls, group: PrefillGroup) -> str:
        block = group.cells[0].schedule.prefill_block
        return "evicted during prefill" + (f", {block} tokens at a time" if block else "")

    @classmethod
    def cost(cls, group: PrefillGroup) -> str:
        task, texts = group.task, sum(len(job.missing) for job in group.jobs)
        most = group.rows_to_do * (task.context_length or 0)
        preceding = f", each after at most {task.given_tokens} others" if task.given_tokens else ""
        return (
            f"to score: {count_noun(texts, 'text')}, {group.rows_to_do} times in all, at most {most} tokens{preceding}"
        )

    def rows(self, job: PrefillJob, samples: Sequence[Sample]) -> JobResult:
        return run_texts(self.model, job, samples, self.environment_id, self.kept)


def run_texts(
    model: LoadedModel, job: PrefillJob, samples: Sequence[Sample], environment: str, detail: KeptDetail = "none"
) -> JobResult:
    """Return rows of a job, by sample and cell in the order of the job, and the curve of each. `samples` are its texts.

    What a text or a cell cannot do (no token to score, a budget below the protected tokens, NaN in the cache) becomes a
    row with its `error`; the others go on. If caches go on from text to text, the texts before the missing ones are
    read again.
    """
    result, by_id = JobResult(job, environment, detail), {sample.id: sample for sample in samples}
    if _task(job.cells[0]).reset:
        for sample, cells in job.missing.items():
            _Reading(model, [by_id[sample]], result).run(cells)
    else:
        earlier = set(range(max(job.missing))) - set(by_id)
        again = job.cells[0].task.generate(TokensOf(model.tokenizer), earlier)
        by_id |= {sample.id: sample for sample in again if isinstance(sample, Sample)}
        texts = [by_id[sample] for sample in sorted(by_id)]
        _Reading(model, texts, result).run(job.cells)
    result.sort()
    return result


class _CannotReadTogether(Exception):
    """One of several cells cannot go on."""


@dataclass(frozen=True)
class _Reading:
    """Texts that are read one after the other; the rows that the job lacks are recorded."""

    model: LoadedModel
    texts: Sequence[Sample]
    result: JobResult

    def run(self, cells: Sequence[Cell]) -> None:
        """Read the texts with a full decode batch of cells at a time, or as many as fitted when memory ran out before.

        When it runs out, each half begins again with the first text; nothing is recorded of a part that did not finish.
        """
        engine, remaining = self.model.engine, list(cells)
        while remaining:
            most = most_together(engine)
            part, remaining = remaining[:most], remaining[most:]
            halve_on_oom(part, self._score_part, self._fail, engine)

    def _score_part(self, cells: list[Cell]) -> None:
        """Score the texts with all cells together; if one of them cannot go on, with each by itself."""
        try:
            self.result.add(self._score(cells))
        except _CannotReadTogether:
            for part in [self._score([cell]) for cell in cells]:
                self.result.add(part)

    def _score(self, cells: Sequence[Cell]) -> JobResult:
        """Score the texts, one after the other; caches go on from text to text."""
        part = self.result.part()
        prompts, caches = self._prompts(cells, part), list[EvictingCache]()
        readable = [sample for sample in self.texts if sample.id in prompts]
        for place, sample in enumerate(readable):
            prompt, start = prompts[sample.id], clock(self.model)
            try:
                _check_length(self.model, prompt.tokens - 1 + (caches[0].num_tokens if caches else 0), cells)
                caches = caches or _caches(self.model, cells, list(prompts.values()))
                caches, nll = _nll(self.model, prompt, cells, caches)
            except ValueError as error:
                if len(cells) > 1:
                    raise _CannotReadTogether from error
                for later in readable[place:]:
                    part.fail(later, RowError.of(error), cells, prompts[later.id])
                break
            seconds = (clock(self.model) - start) / len(cells)
            for cell, evicting, values in zip(cells, caches, nll.double().cpu().tolist(), strict=True):
                if (cell.id, sample.id) in part.job.places:
                    _record(part, sample, prompt, cell, evicting, values, seconds)
        return part

    def _prompts(self, cells: Sequence[Cell], part: JobResult) -> dict[int, Prompt]:
        """Return the prompts of the texts, by sample; rows in `part` for those that have no token to score."""
        prompts, task, tokenizer = dict[int, Prompt](), _task(cells[0]), self.model.tokenizer
        for sample in self.texts:
            try:
                if sample.question:
                    prompts[sample.id] = begin_continuation(tokenizer, sample, task.given_tokens, task.context_length)
                else:
                    prompts[sample.id] = begin(tokenizer, sample.context, task.context_length + 1)
            except ValueError as error:
                part.fail(sample, str(error), cells)
        return prompts

    def _fail(self, cell: Cell, reason: str) -> None:
        for sample in self.texts:
            self.result.fail(sample, reason, [cell])


def _check_length(model: LoadedModel, last: int, cells: Sequence[Cell]) -> None:
    """Raise UserError where the position of the last token is beyond what the model reads, and a cell keeps it."""
    if last > model.max_length and not all(cell.policy.renumbers for cell in cells):
        raise UserError(
            f"the token at position {last} is beyond the longest sequence of the model, "
            f"{model.max_length} tokens; use policy.positions=cache, or fewer tokens "
            "(task.context_length, task.samples)"
        )


def _record(
    part: JobResult,
    sample: Sample,
    prompt: Prompt,
    cell: Cell,
    evicting: EvictingCache,
    values: Sequence[float],
    seconds: float,
) -> None:
    """Record the row and the curve of a text and a cell. values: the negative log-likelihood of each scored token."""
    broken = next((position for position, value in enumerate(values) if not math.isfinite(value)), None)
    if broken is not None:
        part.fail(sample, BROKEN.format(broken), [cell], prompt)
        return
    cache, task = evicting.freeze(), _task(cell)
    part.record(
        sample,
        prompt,
        measure([EvictedCell(cell, cache, kept_of(cache), cache.lengths)])[0],
        evicting.num_tokens,
        prompt_tokens=evicting.num_tokens,
        **cache.exempt,
        full_cache_bytes=evicting.full_bytes,
        peak_bytes=evicting.peak_bytes,
        decode_evictions=evicting.evictions,
        decode_seconds=seconds,
        new_tokens=len(values),
        value=math.fsum(values) / len(values),
    )
    part.curves.append(Curve.over(cell.id, sample.id, task.metric, values, task.context_length))


def _nll(
    model: LoadedModel, prompt: Prompt, cells: Sequence[Cell], caches: Sequence[EvictingCache]
) -> tuple[list[EvictingCache], Float[Tensor, "cells targets"]]:
    """Return the negative log-likelihood of each token, and the caches afterwards.

    The given part of a text is read first, in blocks like a prompt; its last token is fed like those that are scored.
    """
    ids = torch.tensor(prompt.prefill + prompt.question)
    block = cells[0].schedule.block_of(len(ids)) or 1
    if not prompt.question:
        return list(caches), model.engine.nll(ids, caches, block)
    num_context = len(prompt.prefill) - 1
    model.engine.read_silently(ids[:num_context], caches, block)
    scoring = []
    for cell, before in zip(cells, caches, strict=True):
        decoding = replace(before.evictor, decoding=True)
        after = model.engine.evicting_cache(decoding, cell.schedule.decode_every, before.freeze())
        after.pending = cell.schedule.pending(after.num_tokens)
        after.full_bytes, after.peak_bytes = before.full_bytes, max(before.peak_bytes, after.peak_bytes)
        scoring.append(after)
    return scoring, model.engine.nll(ids[num_context:], scoring)


def _caches(model: LoadedModel, cells: Sequence[Cell], prompts: Sequence[Prompt]) -> list[EvictingCache]:
    """Return an empty cache of each cell. A budget is a share of all tokens, or a number."""
    caches, num_tokens = [], sum(prompt.tokens - 1 for prompt in prompts)  # the last token of a text is not read
    for cell in cells:
        in_blocks, every = cell.schedule.prefill_block is not None, cell.schedule.decode_every
        eviction = eviction_of(cell, prompts[0])
        waits = every is not None and _task(cell).evict == "before"
        budget = eviction.capacity(num_tokens, reserved=int(waits))
        incremental = IncrementalEviction(eviction, budget, decoding=not in_blocks)
        caches.append(model.engine.evicting_cache(incremental, 1 if in_blocks else every))
    return caches


def _task(cell: Cell) -> "Likelihood":
    return cast("Likelihood", cell.task)
