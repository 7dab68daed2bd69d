"""Answers to several prompts decoded as one batch, where a prompt has so few cells that a batch has room for more.

A step of decoding reads all weights once, however many cells it is for: a sweep with one cell decodes several times
faster. The bits of a row do not depend on the other rows of its batch (`models.batch_invariance`), hence neither do
results on which prompts are decoded together.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from kvbench.cache.kv_cache import KVCache
from kvbench.models import bridge
from kvbench.models.decode.batch import RaggedBatch
from kvbench.models.decode.holder import COPIES
from kvbench.models.loading.architecture import sliding_windows
from kvbench.models.loading.load import LoadedModel
from kvbench.models.prompts.prompt import Prompt
from kvbench.models.prompts.tokens import ends
from kvbench.records.sidecars import KeptDetail
from kvbench.run import memory
from kvbench.run.cell import Cell
from kvbench.run.decode_batch import batch_kind, batch_of
from kvbench.run.evict_cell import HeldCache, clock
from kvbench.run.plan import PrefillJob
from kvbench.run.prefill_job import DecodeJob, answers_of, begin_job, prompts_of, record_answer
from kvbench.run.rows import JobResult, PrefillFacts
from kvbench.tasks.task import Sample

MOST_SECONDS = 60.0
"""Seconds of prefill after which the prompts so far are answered: about as much work is lost if a process is killed."""


def may_decode_jointly(cells: Sequence[Cell], size: int) -> bool:
    """Return whether several prompts of these cells fit into a batch of `size` cells, and can be decoded in one if
    their model can.

    They can where each cell has its own copy of what it keeps and evicts no further, and answers are the most likely
    tokens. A question that is read after the eviction becomes a part of what is kept: not with renumbered pairs.
    """
    task = cells[0].task
    if not task.has_prompts or task.turns != "none" or task.temperature or task.forces_answers:
        return False
    if 2 * len(cells) > size or len({batch_kind(cell) for cell in cells}) > 1:
        return False
    if not cells[0].held.joins or cells[0].schedule.decode_every is not None:
        return False
    return cells[0].schedule.evict_after != "context" or not any(cell.policy.renumbers for cell in cells)


def decodes_jointly(model: LoadedModel, cells: Sequence[Cell]) -> bool:
    """Return whether several prompts of these cells are decoded in one batch.

    The model takes the position of every row and has no local layer. A question that is read after the eviction is
    exact in plain PyTorch.
    """
    engine = model.engine
    if not may_decode_jointly(cells, engine.max_batch) or (
        cells[0].schedule.evict_after == "context" and engine.kernels != "torch"
    ):
        return False
    traits, windows = bridge.traits(engine.model), sliding_windows(engine.model.config).values()
    return engine.rope is None and not (traits.stateful or traits.counts_positions) and set(windows) <= {None}


@dataclass
class _Unanswered:
    """A cell after its eviction from the prompt of a sample, and after its question.

    logits: of the last token of the prompt. seconds: that the question took.
    """

    cache: HeldCache
    logits: torch.Tensor
    seconds: float
    sample: Sample
    prompt: Prompt
    prefill: PrefillFacts
    result: JobResult


class JointBatch:
    """Prefill jobs of one group for which `decodes_jointly` holds, each with a single sample."""

    def __init__(self, model: LoadedModel, environment: str, detail: KeptDetail = "none") -> None:
        self._model, self._environment = model, environment
        self._detail: KeptDetail = detail
        self._unanswered: list[_Unanswered] = []
        self._devices: list[torch.device] = []
        self._since, self._largest, self._cells = time.monotonic(), 0, 0

    def add(self, job: PrefillJob, sample: Sample) -> bool:
        """Prefill and evict. False for a job that is to be made by itself after `finish`: one without an answer to
        decode, for which memory ran out, or whose answer may be longer or shorter than those that wait.
        """
        if not self._unanswered:
            self._since = time.monotonic()
        elif self._unanswered[0].sample.max_new_tokens != sample.max_new_tokens:
            return False
        counters = self._model.engine.counters
        oom_at = dict(counters.oom_at)
        result = JobResult(job, self._environment, self._detail)
        prompted, prompts = prompts_of(self._model, [sample], result)
        decode_job = begin_job(self._model, prompted, prompts, job.cells, result) if prompted else None
        if self._unanswered and counters.oom_at != oom_at:  # what waits must not change how a prompt is read
            counters.oom_at = oom_at
            return False
        if decode_job is None:
            return False
        unanswered = memory.catch_oom(partial(_evicted, self._model, sample, decode_job, result), self._model.engine)
        if isinstance(unanswered, str) or not unanswered:
            return False
        self._unanswered += unanswered
        self._devices = decode_job.devices
        self._largest = max(self._largest, decode_job.prefill.prefilled.full_bytes)
        self._cells = max(self._cells, len(job.cells))
        return True

    @property
    def is_full(self) -> bool:
        """Whether no other prompt should be added: the batch, the memory or the time is used up."""
        if not self._unanswered:
            return False
        if len(self._unanswered) + self._cells > memory.most_together(self._model.engine):
            return True
        free = memory.free_beside(self._model.engine, self._devices)
        return COPIES * self._largest > memory.FREE_SHARE * free or time.monotonic() - self._since > MOST_SECONDS

    def finish(self) -> dict[int, JobResult]:
        """Answer all prompts that were added: the results of their jobs, by the jobs' keys; none if memory runs out."""
        unanswered, self._unanswered, counters = self._unanswered, [], self._model.engine.counters
        if not unanswered:
            return {}
        together, results = len(unanswered), {each.result.job.key: each.result for each in unanswered}
        if memory.catch_oom(partial(_answer, self._model, unanswered)) is not None:
            counters.oom_splits += 1
            counters.max_cells = max(1, together // 2)
            return {}
        for result in results.values():
            result.sort()
        return results


def _evicted(model: LoadedModel, sample: Sample, decode_job: DecodeJob, result: JobResult) -> list[_Unanswered]:
    """Return the cells of a prompt, which have read its question."""
    prompt, facts, engine = decode_job.prompts[sample.id], decode_job.prefill.facts, model.engine
    cells, start = decode_job.evict(), clock(model)
    logits = [decode_job.prefill.prefilled.logits] * len(cells)
    if prompt.question and cells:
        caches = [cell.cache for cell in cells if isinstance(cell.cache, KVCache)]
        batch = RaggedBatch(caches, engine.max_batch, len(prompt.question))
        logits = list(engine.read_question(batch, torch.tensor(prompt.question))[: len(cells)])
        grown = batch.appended(caches)
        cells = [replace(cell, cache=cache) for cell, cache in zip(cells, grown, strict=True)]
    seconds = (clock(model) - start) / max(1, len(cells))
    of_cells = zip(cells, logits, strict=True)
    return [_Unanswered(cell, each, seconds, sample, prompt, facts, result) for cell, each in of_cells]


def _answer(model: LoadedModel, unanswered: list[_Unanswered]) -> None:
    """Decode one batch and record its rows. The list is emptied, so that each cache is freed once it is copied."""
    start, number, task = clock(model), len(unanswered), unanswered[0].cache.result.cell.task
    subjects = [(each.sample, each.prompt, each.cache.result, each.prefill) for each in unanswered]
    results, seconds = [each.result for each in unanswered], [each.seconds for each in unanswered]
    logits, caches = torch.stack([each.logits for each in unanswered]), [each.cache for each in unanswered]
    unanswered.clear()
    batch = batch_of(model.engine, caches, subjects[0][0].max_new_tokens)
    padding = logits[:1].expand(batch.cells - number, -1)
    stop, layout_seconds = ends(model.tokenizer, task, model.stop), (clock(model) - start) / number
    generations = model.engine.decode(batch, torch.cat((logits, padding)), stop, task.min_new_tokens)
    answers = answers_of(batch, generations, [prompt for _, prompt, *_ in subjects], 0)
    stepped = batch.stepped if model.engine.gpus else None
    del batch  # a second request may need its memory
    for result, subject, answer, before in zip(results, subjects, answers, seconds, strict=True):
        record_answer(model, result, *subject, answer, stop, before + layout_seconds)
        result.stepped |= {subject[2].cell.id: stepped} if stepped else {}
