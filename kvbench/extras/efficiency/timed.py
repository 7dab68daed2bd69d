"""The cells of an efficiency task, timed one after the other on the same prompt, with nothing beside them.

Cells take turns, repetition by repetition, so that a machine that slows down slows all of them. Each repetition does:

prefill, evict   once per sequence of the batch, one after the other, as kvbench prefills prompts. The full cache of a
                 prompt is gone when the next is prefilled. A cell's prefill records the inputs of its own score only:
                 the full cache does not pay for them.
layout           the evicted caches are copied into one decode batch.
steps            every sequence reads one token at a time, the most likely one; no end is looked for. The full cache
                 takes the same steps as the methods: launched one by one, over kvbench's batch.
in production    the same tokens again, without what a method may forbid: by replays of a captured step where a run has
                 them, and without a graph, for the full cache alone, by transformers' own cache and attention.

On CUDA, decode steps are timed with events between the kernels of a stream, so that nothing waits for the device
between two steps: a step takes as long as the device is busy with it or waits for the host, as in real decoding. On
other devices, whose work is finished when a call returns, they are timed by the processor's clock.
"""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any, cast

import torch

from kvbench.extras.efficiency import roofline
from kvbench.extras.efficiency.transformers_steps import own_steps
from kvbench.models.batch_invariance import BatchInvariance
from kvbench.models.decode.batch import DecodeBatch
from kvbench.models.decode.next_token import greedy
from kvbench.models.engine import Engine
from kvbench.models.loading.load import LoadedModel
from kvbench.models.prompts.prompt import Prompt
from kvbench.models.prompts.raw_text import begin
from kvbench.records.sidecars import KeptDetail, Timing
from kvbench.run.cell import Cell
from kvbench.run.decode_batch import batch_of
from kvbench.run.energy import energy_meter
from kvbench.run.evict_cell import HeldCache, SharedPrefill, clock, evict_cell
from kvbench.run.local import OneByOne
from kvbench.run.memory import catch_oom
from kvbench.run.plan import PrefillGroup, PrefillJob
from kvbench.run.prefill_job import BROKEN, ONE_PASS, chunk_of, prefill
from kvbench.run.rows import EvictionResult, JobResult, RowError, hash_ids
from kvbench.support.errors import UserError
from kvbench.support.quantity import count_noun
from kvbench.tasks.task import Sample

if TYPE_CHECKING:
    from kvbench.extras.efficiency.efficiency import Efficiency

FULL = "full"
"""The label of the full cache, as the model itself stores it."""


@dataclass
class Repetition:
    """Measurements of one repetition of a cell.

    eviction: of one sequence. num_tokens, exempt: of the full cache. group: query heads per cache head. ids: the
    new tokens of one sequence; evictions: how often it lost pairs to them; in_production: its tokens as in production,
    none if that was not timed. stepped: as of `DecodeBatch`, in production. quantities, steps: as in
    `kvbench.records.Timing`.
    """

    eviction: EvictionResult
    num_tokens: int
    exempt: dict[str, int | None]
    group: int
    ids: list[int] = field(default_factory=list)
    evictions: int = 0
    in_production: list[int] = field(default_factory=list)
    stepped: str | None = None
    quantities: dict[str, float] = field(default_factory=dict)
    steps: list[float] = field(default_factory=list)


class Timings(OneByOne):
    """Times the cells on one prompt."""

    @classmethod
    def when(cls, group: PrefillGroup) -> str:
        return f"evicted after the {group.cells[0].schedule.evict_after}"

    @classmethod
    def cost(cls, group: PrefillGroup) -> str:
        task = _task(group.cells[0])
        cells = len({cell.id for job in group.jobs for cell in job.cells})
        times = task.batch * (group.rows_to_do + task.warmup * cells)
        read, written = times * task.context_length, times * task.new_tokens
        return f"prefill: {count_noun(times, 'prompt')}, {read} tokens, warming up included; answers: {written} tokens"

    def rows(self, job: PrefillJob, samples: Sequence[Sample]) -> JobResult:
        return run_timed(self.model, job, samples, self.environment_id, self.kept)


def run_timed(
    model: LoadedModel, job: PrefillJob, samples: Sequence[Sample], environment: str, detail: KeptDetail = "none"
) -> JobResult:
    """Rows and timings of a job, by repetition and cell. `samples` are its repetitions.

    What a cell cannot do (a budget below the protected tokens, more memory than there is) becomes rows with the
    `error`; the other cells go on.
    """
    engine, task = model.engine, _task(job.cells[0])
    result, failures = JobResult(job, environment, detail), {}
    prompt = begin(model.tokenizer, samples[0].context, task.context_length)
    if prompt.tokens + task.new_tokens > model.max_length:
        error = (
            f"{prompt.tokens} tokens and {task.new_tokens} new ones are too many: the model reads at most "
            f"{model.max_length}"
        )
        for sample in samples:
            result.fail(sample, error, prompt=prompt)
        return result
    speed, chunk = roofline.ceiling(engine.device, engine.model.dtype), chunk_of(engine, prompt, job.cells)
    result.chunk = None if chunk == engine.prefill_chunk else ONE_PASS
    for cell in job.cells:
        for _ in range(task.warmup):
            _try_repetition(model, cell, prompt, chunk, failures)
    for sample in samples:
        for cell in job.missing[sample.id]:
            repetition = _try_repetition(model, cell, prompt, chunk, failures)
            if repetition is None:
                result.fail(sample, failures[cell.id], [cell], prompt)
                continue
            columns = _columns(cell, repetition)
            result.record(sample, prompt, repetition.eviction, repetition.num_tokens, **columns)
            quantities = repetition.quantities | _roofline(model, cell, repetition, chunk, speed)
            result.timings.append(Timing(cell.id, sample.id, quantities, tuple(repetition.steps)))
            if repetition.stepped is not None:
                result.stepped[cell.id] = repetition.stepped
    return result


def _try_repetition(
    model: LoadedModel, cell: Cell, prompt: Prompt, chunk: int, failures: dict[str, str | RowError]
) -> Repetition | None:
    """Return one repetition; None, and the reason in `failures`, if the cell fails or has failed before."""
    if cell.id not in failures:
        try:
            repetition = catch_oom(lambda: _time_cell(model, cell, prompt, chunk, energy_meter(model.engine.gpus)))
        except ValueError as error:
            repetition = RowError.of(error)
        if isinstance(repetition, Repetition):
            return repetition
        failures[cell.id] = repetition
    return None


@torch.inference_mode()
def _time_cell(
    model: LoadedModel, cell: Cell, prompt: Prompt, chunk: int, joules: Callable[[], float] | None
) -> Repetition:
    """Time a cell once, `chunk` tokens of the prompt in a pass. Raises ValueError for what it cannot do, and what torch
    raises when memory runs out.
    """
    batch, new_tokens = _task(cell).batch, _task(cell).new_tokens
    decoding = model.engine.decoding.fresh()  # a run's sizes, and peaks of this cell alone
    engine = replace(model.engine, max_batch=batch, batch_invariance=BatchInvariance(), decoding=decoding)
    model = replace(model, engine=engine)
    _reset_peaks(engine)
    engine.sync()
    joules_before = None if joules is None else joules()
    evicted, logits, repetition = [], [], None
    prefill_seconds = score_seconds = evict_seconds = full_bytes = 0.0
    for _ in range(batch):
        timed_prefill = prefill(model, {0: prompt}, [cell], chunk)
        full = timed_prefill.prefilled
        shared = SharedPrefill(full.cache, prompt, [cell], summed=full.seconds)
        cache = evict_cell(model, cell, shared)
        scoring = sum(taken.seconds for _, taken in shared.rankings.values())
        scoring += sum(seconds for _, seconds in shared.repeated.values())
        prefill_seconds, score_seconds = prefill_seconds + timed_prefill.seconds, score_seconds + scoring
        evict_seconds += (cache.result.seconds or 0.0) - scoring
        full_bytes += full.full_bytes
        repetition = repetition or Repetition(cache.result, full.cache.num_tokens, full.cache.exempt, 1)
        repetition.group = full.cache.layers[0].query_heads // cache.cache.layers[0].cache_heads
        logits.append(full.logits)
        evicted.append(cache)
        del timed_prefill, full, shared, cache
    assert repetition is not None
    start = clock(model)
    last = torch.stack(logits)
    ids = last.argmax(dim=-1)
    repetition.ids.append(int(ids[0]))
    del logits
    first_token_seconds = prefill_seconds + score_seconds + evict_seconds + clock(model) - start
    quantities = {"prefill_seconds": prefill_seconds, "first_token_seconds": first_token_seconds}
    quantities["full_bytes"] = full_bytes
    if repetition.eviction.seconds is not None:
        quantities |= {"score_seconds": score_seconds, "cut_seconds": max(0.0, evict_seconds)}
    quantities |= {"held_bytes": batch * repetition.eviction.cache_bytes} | _peaks(engine, "prefill_peak_bytes")
    _reset_peaks(engine)
    repetition.quantities = quantities
    decoded = _decode(model, evicted, ids, new_tokens, repetition)
    if joules_before is not None and joules is not None:
        quantities["joules"] = joules() - joules_before
    _decode_in_production(model, cell, prompt, decoded, last, repetition)
    return repetition


def _decode(
    model: LoadedModel, evicted: list[HeldCache], ids: torch.Tensor, new_tokens: int, repetition: Repetition
) -> DecodeBatch:
    """Lay out the decode batch and feed all new tokens but the last, whose successor is not asked for."""
    engine, start = model.engine, clock(model)
    batch = batch_of(engine, evicted, new_tokens)
    repetition.quantities["layout_seconds"] = clock(model) - start
    steps, tokens, start = StepClock(ids.device), [ids], time.perf_counter()
    steps.mark()
    finite = torch.ones((), dtype=torch.bool, device=ids.device)
    for _ in range(new_tokens - 1):
        logits = engine.read(batch, tokens[-1][:, None])[: len(ids)]
        tokens.append(logits.argmax(dim=-1))
        finite &= logits.isfinite().all()
        steps.mark()
    repetition.steps = steps.seconds()
    repetition.quantities["decode_seconds"] = clock(model) - start
    if batch.failures:
        raise UserError(next(iter(batch.failures.values())))
    if not finite:
        raise UserError(BROKEN.format(new_tokens))
    repetition.ids += [int(token[0]) for token in tokens[1:]]
    repetition.quantities["decode_bytes"] = sum(batch.peak_bytes)
    repetition.evictions = batch.evictions(0)
    repetition.quantities |= _peaks(engine, "decode_peak_bytes")
    return batch


def _decode_in_production(
    model: LoadedModel, cell: Cell, prompt: Prompt, batch: DecodeBatch, logits: torch.Tensor, repetition: Repetition
) -> None:
    """Time the steps of the same tokens as in production, but for the first ones of a graph, which capture it."""
    engine, steps, new_tokens = model.engine, list[float](), _task(cell).new_tokens
    reason = engine.decoding.launched(batch, new_tokens)
    if reason is None:
        batch.num_new_tokens = 0  # the same tokens are written in the same places
        start = None
        for block in engine.decode_steps(batch, logits, (), 0, greedy):
            repetition.in_production += [int(chosen[0][0]) for chosen in block]
            if start is not None:
                steps += [(time.perf_counter() - start) / len(block)] * len(block)
            start = time.perf_counter()
    elif cell.eviction.policy_label == FULL:
        ends, ids = StepClock(engine.device), torch.tensor(prompt.prefill, device=engine.device)
        repetition.in_production = own_steps(engine.model, ids, _task(cell).batch, new_tokens, ends.mark) or []
        steps = ends.seconds() if repetition.in_production else []
    if engine.gpus:
        repetition.stepped = batch.stepped if reason is None else f"one by one: {reason}"
    if steps:
        repetition.quantities["production_seconds"] = median(steps)


def _reset_peaks(engine: Engine) -> None:
    for device in engine.gpus:
        torch.cuda.reset_peak_memory_stats(device)


def _peaks(engine: Engine, name: str) -> dict[str, float]:
    """Return the most that torch has allocated, summed over GPUs; only CUDA reports it."""
    return {name: float(sum(map(torch.cuda.max_memory_allocated, engine.gpus)))} if engine.gpus else {}


def _roofline(
    model: LoadedModel, cell: Cell, repetition: Repetition, chunk: int, speed: dict[str, float]
) -> dict[str, float]:
    """Return the least work of each part, and the speed of the device."""
    task, shape = _task(cell), roofline.shape_of(model.engine.model)
    passes = -(-task.context_length // (cell.schedule.block_of(task.context_length) or chunk))
    tails, quantities = task.new_tokens / 2, repetition.quantities
    pairs = sum(map(sum, repetition.eviction.lengths))
    cache_heads = len(shape.windows) * shape.heads // repetition.group
    held = quantities["held_bytes"]
    return (
        {
            "weight_bytes": roofline.weight_bytes(model.engine.model),
            "prefill_flops": task.batch * roofline.prefill_flops(shape, task.context_length, passes),
            "prefill_moved_bytes": task.batch * roofline.prefill_bytes(shape, task.context_length, passes),
            "score_moved_bytes": roofline.score_bytes(quantities["full_bytes"], held),
            "step_flops": roofline.step_flops(shape, [(pairs, repetition.group)] * task.batch, tails),
            "step_moved_bytes": roofline.step_bytes(shape, held, task.batch * cache_heads * tails * shape.pair_bytes),
        }
        | speed
        | ({"load": os.getloadavg()[0]} if hasattr(os, "getloadavg") else {})
    )


def _columns(cell: Cell, repetition: Repetition) -> dict[str, float | str | None]:
    """Return the columns of a row: seconds and bytes per sequence of the batch, as in every other row."""
    batch, quantities = _task(cell).batch, repetition.quantities
    evicting = [quantities[name] for name in ("score_seconds", "cut_seconds") if name in quantities]
    return {
        "full_cache_bytes": int(quantities["full_bytes"]) // batch,
        "peak_bytes": int(quantities["decode_bytes"]) // batch,
        "prefill_seconds": quantities["prefill_seconds"] / batch,
        "evict_seconds": sum(evicting) / batch if evicting else None,
        "decode_seconds": quantities["decode_seconds"] / batch,
        **repetition.exempt,
        "production_seconds": quantities.get("production_seconds"),
        "new_tokens": len(repetition.ids),
        "decode_evictions": repetition.evictions,
        "output_sha256": hash_ids(repetition.ids),
        "value": median(repetition.steps),
    }


def _task(cell: Cell) -> "Efficiency":
    return cast("Efficiency", cell.task)


class StepClock:
    """Marks the ends of steps; the first mark is the start of the first step."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._marks: list[Any] = []

    def mark(self) -> None:
        if self._device.type == "cuda":
            self._marks.append(torch.cuda.Event(enable_timing=True))
            self._marks[-1].record(torch.cuda.current_stream(self._device))
        else:
            self._marks.append(time.perf_counter())

    def seconds(self) -> list[float]:
        """Return the duration of each step, once all have ended."""
        if self._device.type != "cuda":
            return [end - start for start, end in pairwise(self._marks)]
        self._marks[-1].synchronize()
        return [start.elapsed_time(end) / 1000 for start, end in pairwise(self._marks)]
