"""Answers to several prompts decoded as one batch, where a prompt has so few cells that a batch has room for more.

A step of decoding reads all weights once, however many cells it is for: a sweep with one cell decodes several times
faster. The bits of a row do not depend on the other rows of its batch (`models.batch_invariance`), hence neither do
results on which prompts are decoded together.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch

from kvbench.models import bridge
from kvbench.models.loading.architecture import sliding_windows
from kvbench.models.loading.load import LoadedModel
from kvbench.models.prompts.prompt import Prompt, ends
from kvbench.records import KeptDetail
from kvbench.run import memory
from kvbench.run.evict_cell import CompressedCache, batch_of, clock
from kvbench.run.plan import Cell, PrefillJob
from kvbench.run.prefill_job import answers_of, batch_kind, begin, record_answer
from kvbench.run.rows import JobResult, PrefillFacts
from kvbench.tasks.task import Sample

MOST_SECONDS = 60.0
"""Seconds of prefill after which the prompts so far are answered: about as much work is lost if a process is killed."""


def decodes_jointly(model: LoadedModel, cells: Sequence[Cell]) -> bool:
    """Whether several prompts of these cells fit into a batch, and can be decoded in one.

    They can where each cell has its own copy of what it keeps and evicts no further, prompts have no question after the
    eviction, answers are the most likely tokens, and the model takes the position of every row and has no local layer.
    """
    engine, task, schedule = model.engine, cells[0].task, cells[0].schedule
    if 2 * len(cells) > engine.tile or len({batch_kind(cell) for cell in cells}) > 1:
        return False
    store, prunes_keys, _, evicts, _ = batch_kind(cells[0])
    if store != "flat" or prunes_keys or evicts or cells[0].reader is not None:
        return False
    if schedule.evict_after != "prompt" or task.turns != "none" or task.temperature or task.forces_answers:
        return False
    traits, windows = bridge.traits(engine.model), sliding_windows(engine.model.config).values()
    return engine.rope is None and not (traits.stateful or traits.counts_positions) and set(windows) <= {None}


@dataclass
class _Unanswered:
    """A cell after its eviction from the prompt of a sample; `logits` of the last token of the prompt."""

    compressed: CompressedCache
    sample: Sample
    prompt: Prompt
    logits: torch.Tensor
    prefill: PrefillFacts
    result: JobResult


class JointDecoding:
    """Prefill jobs of one group for which `decodes_jointly` holds, each with a single sample."""

    def __init__(self, model: LoadedModel, environment: str, detail: KeptDetail = "none") -> None:
        self._model, self._environment = model, environment
        self._detail: KeptDetail = detail
        self._clear()

    def _clear(self) -> None:
        self._unanswered: list[_Unanswered] = []
        self._results: dict[int, JobResult] = {}
        self._since, self._largest, self._cells = time.monotonic(), 0, 0

    def add(self, job: PrefillJob, sample: Sample) -> None:
        """Prefill and evict. A job that cannot wait for others, or fails in an unforeseen way, is left out of the
        results of `finish`.
        """
        if any(each.sample.max_new_tokens != sample.max_new_tokens for each in self._unanswered):
            return
        result, decoding = begin(self._model, job, [sample], self._environment, self._detail)
        if decoding is None:
            self._results[job.key] = result
            return
        evicted = memory.attempt(decoding.evict)
        if isinstance(evicted, str):
            return
        self._results[job.key] = result
        self._largest = max(self._largest, decoding.prefill.prefilled.full_bytes)
        self._cells = max(self._cells, len(job.cells))
        facts, prompt = decoding.prefill.facts, decoding.prompts[sample.id]
        logits = decoding.prefill.prefilled.logits
        self._unanswered += [_Unanswered(each, sample, prompt, logits, facts, result) for each in evicted]

    @property
    def is_full(self) -> bool:
        """Whether no other prompt should be added: the batch, the memory or the time is used up."""
        if not self._unanswered:
            return False
        engine, (first, *_) = self._model.engine, self._unanswered
        if len(self._unanswered) + self._cells > memory.most_together(engine):
            return True
        free = memory.free_bytes([first.logits.device])
        return memory.COPIES * self._largest > memory.SHARE * free or time.monotonic() - self._since > MOST_SECONDS

    def finish(self) -> dict[int, JobResult]:
        """Answer all prompts that were added: the results of their jobs, by the jobs' keys.

        If memory runs out, there are results only of jobs that had nothing to answer.
        """
        results, unanswered, counters = self._results, self._unanswered, self._model.engine.counters
        self._clear()
        if unanswered:
            together, keys = len(unanswered), {each.result.job.key for each in unanswered}
            reason = memory.attempt(partial(_answer, self._model, unanswered))
            if reason is not None:
                counters.halved += 1
                counters.together = max(1, together // 2)
                return {key: result for key, result in results.items() if key not in keys}
        for result in results.values():
            result.sort()
        return results


def _answer(model: LoadedModel, unanswered: list[_Unanswered]) -> None:
    """Decode one batch and record its rows. The list is emptied, so that each cache is freed once it is copied."""
    start, number = clock(model), len(unanswered)
    subjects = [(each.sample, each.prompt, each.compressed.result, each.prefill) for each in unanswered]
    results, logits = [each.result for each in unanswered], torch.stack([each.logits for each in unanswered])
    task, caches = subjects[0][2].cell.task, [each.compressed for each in unanswered]
    unanswered.clear()
    batch = batch_of(model.engine, caches, subjects[0][0].max_new_tokens)
    padding = logits[:1].expand(batch.cells - number, -1)
    stop, seconds = ends(model.tokenizer, task, model.stop), (clock(model) - start) / number
    generations = model.engine.decode(batch, torch.cat((logits, padding)), stop, task.min_new_tokens)
    answers = answers_of(batch, generations, [prompt for _, prompt, *_ in subjects])
    del batch  # a second request may need its memory
    for result, subject, answer in zip(results, subjects, answers, strict=True):
        record_answer(model, result, *subject, answer, stop, seconds)
