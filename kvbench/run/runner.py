"""Running a plan: load a model, make the samples, run prefill jobs, record their rows."""

import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch

from kvbench.eviction.allocation.layers import TableLayers
from kvbench.models.engine import Counters
from kvbench.models.linear_layers import Products
from kvbench.models.loading.architecture import sliding_windows
from kvbench.models.loading.load import LoadedModel, ModelInfo, load, model_info
from kvbench.models.loading.spec import ModelSpec
from kvbench.models.prompts.chat import split, uses_template
from kvbench.models.prompts.prompt import stop_tokens
from kvbench.records import KeptDetail, PromptRecord, ResultsFolder, Stopped, environment, places
from kvbench.run.job_queue import JobQueue, RunContext
from kvbench.run.joint_batch import JointBatch, decodes_jointly
from kvbench.run.memory import out_of_memory
from kvbench.run.perplexity import run_texts
from kvbench.run.plan import Plan, PrefillGroup, PrefillJob, check_model_unchanged, describe_model
from kvbench.run.prefill_job import run_prefill_job
from kvbench.run.progress import Outcome, Progress
from kvbench.run.rows import JobResult
from kvbench.run.samples import jobs_with_samples, samples_of
from kvbench.run.timed import run_timed
from kvbench.support.errors import OverLimit, UserError
from kvbench.tasks.efficiency import Efficiency
from kvbench.tasks.likelihood import Likelihood
from kvbench.tasks.task import InvalidSample, Sample


def run(
    plan: Plan,
    results: ResultsFolder,
    progress: Progress | None,
    kept: KeptDetail = "none",
    run_context: RunContext | None = None,
    loaded: "Loaded | None" = None,
) -> Outcome:
    """Run what is still to do and what nobody else does. If nothing is, nothing is loaded or written.

    loaded: the model of an earlier run, which goes on if it is the same, and is replaced by the last of this one.

    All rows of a job are recorded before the next one starts: an interrupt at any moment leaves complete jobs, and the
    same plan continues from there. Ends when all rows are there, whoever made them. A sample with invalid data gets
    rows with an error.

    Raises ValueError or FileNotFoundError, before any row, for a model that cannot be run or a task that cannot make
    its samples; Stopped, between two jobs, if the run was asked to stop.
    """
    began, run_context = time.perf_counter(), run_context or RunContext()
    since = places(results) if run_context.since is None else run_context.since
    infos = {model: model_info(model) for model in plan.by_model()}
    for model, groups in plan.by_model().items():
        for group in groups:
            dry_run(infos[model], group)
    with JobQueue(results, run_context, since) as queue:
        running = _Run(results, queue, progress, kept, loaded or Loaded(), began)
        plan = queue.left(plan)
        while plan.rows_to_do:
            left = sum(len(group.jobs) for group in plan.groups)
            for model, groups in plan.by_model().items():
                for group in groups:
                    running.run_group(infos[model], group, left)
                    left -= len(group.jobs)
            plan = queue.wait(plan)
        queue.request()  # where other processes made everything
    outcome = running.outcome
    for counters in running.counters:
        outcome.prefills += counters.prefills
        outcome.tokens_prefilled += counters.tokens_prefilled
        outcome.halved += counters.halved
    return outcome


@dataclass
class Loaded:
    """The model that was loaded last, for several runs of one process."""

    spec: ModelSpec | None = None
    model: LoadedModel | None = None


class _Run:
    """One run: the model loaded last, the rows so far, and the counters of every model."""

    def __init__(
        self,
        results: ResultsFolder,
        queue: JobQueue,
        progress: Progress | None,
        kept: KeptDetail,
        loaded: Loaded,
        began: float,
    ) -> None:
        self._results, self._queue, self._progress = results, queue, progress
        self._kept: KeptDetail = kept
        self._loaded, self._began = loaded, began
        self.counters: list[Counters] = []
        self.outcome = Outcome()

    def run_group(self, info: ModelInfo, group: PrefillGroup, left: int) -> None:
        """Make and record the jobs that are left to this process. The model is loaded for the first of them.

        left: jobs of this and all later groups.
        """
        maker: JobMaker | None = None
        try:
            for place, (planned, samples) in enumerate(jobs_with_samples(info.tokenizer, group)):
                job = self._queue.take(group, planned)
                if job is None:
                    if self._progress is not None:
                        self._progress.elsewhere(len(planned.places))
                    continue
                model = self._load(info)
                if maker is None:
                    maker = JobMaker(model, group, self._write_names(group, model), self._kept, self._results)
                missing = [sample for sample in samples if sample.id in job.missing]
                unrecorded = left - place + maker.num_waiting
                self._record(maker.make(job, missing, self._queue.share(unrecorded)))
        except Stopped:
            if maker is not None:
                self._record(maker.finish())
            raise
        if maker is not None:
            self._record(maker.finish())

    def _write_names(self, group: PrefillGroup, model: LoadedModel) -> str:
        """Write the request, and what the rows of a group name: cells, code and environment, whose id is returned."""
        self._queue.request()
        for cell in group.cells:
            self._results.write_cell(cell.id, cell.description)
            if cell.code.parts is not None:
                self._results.write_code(cell.code.parts)
        return self._results.write_environment(environment(model.device))

    def _record(self, results: Iterable[JobResult]) -> None:
        for made in results:
            result = self._queue.record(made)
            if result is not None:
                self.outcome.rows += len(result.rows)
                self.outcome.errors += sum(row.error is not None for row in result.rows)
                if self._progress is not None:
                    self._progress.recorded(result.rows)

    def _load(self, info: ModelInfo) -> LoadedModel:
        """The model, kept until another one is needed. Raises Stopped if the run was asked to stop meanwhile."""
        if self._loaded.model is None or self._loaded.spec != info.spec:
            began = time.perf_counter() if self.counters else self._began  # the first with the checks of all models
            self._loaded.model = None  # first, so that there is room for the next
            if self._progress is not None:
                self._progress.loading(info.spec.label)
            earlier = cpu_devices(self._results)
            model = load(info, products_of(earlier))
            check_model_unchanged(info.spec, describe_model(info.spec)["sha256"])
            if self._progress is not None:
                for note in (*model.notes, *differences(model.device, earlier)):
                    self._progress.noted(note)
            self._loaded.spec, self._loaded.model = info.spec, model
            self._queue.loaded(info.spec.label, time.perf_counter() - began)
            self._queue.check()
        counters = self._loaded.model.engine.counters
        if not any(counters is other for other in self.counters):
            self.counters.append(counters)
        return self._loaded.model


class JobMaker:
    """Makes jobs of a group, one after the other or several whose prompts are decoded together."""

    def __init__(
        self, model: LoadedModel, group: PrefillGroup, environment_id: str, kept: KeptDetail, results: ResultsFolder
    ) -> None:
        self._model, self._task, self._results = model, group.task, results
        self._environment_id = environment_id
        self._kept: KeptDetail = kept
        self._waiting: list[tuple[PrefillJob, Sequence[Sample | InvalidSample]]] = []
        self._joint: JointBatch | None = None
        if decodes_jointly(model, group.cells):
            self._joint = JointBatch(model, environment_id, kept)

    @property
    def num_waiting(self) -> int:
        """Jobs that wait for others."""
        return len(self._waiting)

    def make(
        self, job: PrefillJob, samples: Sequence[Sample | InvalidSample], most_waiting: int
    ) -> Iterator[JobResult]:
        """The results that there are with this job: none if it waits for others, until a batch is full or
        `most_waiting` jobs wait. One that is made by itself ends the waiting of the others first, which takes memory.
        """
        waits = False
        if self._joint is not None and len(samples) == 1 and isinstance(samples[0], Sample):
            with suppress(Exception):  # made by itself, so that its rows say what is wrong
                waits = self._joint.add(job, samples[0])
        if not waits:
            yield from self.finish()
            yield self._run(job, samples)
            return
        self._waiting.append((job, samples))
        if self._joint is not None and (self._joint.is_full or len(self._waiting) >= most_waiting):
            yield from self.finish()

    def finish(self) -> Iterator[JobResult]:
        """The results of the jobs that wait."""
        waiting, made = self._waiting, dict[int, JobResult]()
        self._waiting = []
        if self._joint is not None:
            with suppress(Exception):
                made = self._joint.finish()
        for job, samples in waiting:
            yield self._run(job, samples, made.get(job.key))

    def _run(
        self, job: PrefillJob, samples: Sequence[Sample | InvalidSample], made: JobResult | None = None
    ) -> JobResult:
        """The rows of a job, `made` or not yet. Exceptions become rows with that error, but OverLimit and exceptions of
        a device are raised.
        """
        runner = run_timed if isinstance(self._task, Efficiency) else run_prefill_job
        runner = run_texts if isinstance(self._task, Likelihood) else runner
        valid = [sample for sample in samples if isinstance(sample, Sample)]
        result = JobResult(job, self._environment_id)
        try:
            if valid:
                valid_job = replace(job, missing={sample.id: job.missing[sample.id] for sample in valid})
                made = made or runner(self._model, valid_job, valid, self._environment_id, self._kept)
                hashes = {row.sample: row.prompt_sha256 for row in made.rows if row.prompt_sha256 is not None}
                for sample in valid:
                    if (name := hashes.get(sample.id)) is not None:
                        texts = made.token_texts.get(name)
                        made.prompts.append(PromptRecord.of(name, sample.prompt, sample.references, texts))
                if made.block is not None:
                    smaller = self._results.write_environment(environment(self._model.device | {"block": made.block}))
                    made.rows = [replace(row, environment=smaller) for row in made.rows]
                result.add(made)
        except OverLimit:
            raise
        except Exception as error:
            if isinstance(error, torch.AcceleratorError) and not out_of_memory(error):
                raise
            path = self._results.write_failure(traceback.format_exc())
            message = f"{type(error).__name__}: {error}; traceback in {path.parent.name}/{path.name}"
            for sample in valid:
                result.fail(sample, message)
        for sample in samples:
            if isinstance(sample, InvalidSample):
                result.fail(sample, sample.error)
        return result


def cpu_devices(results: ResultsFolder) -> list[dict[str, Any]]:
    """The `device` of every environment of a folder that is a CPU; none if a file is damaged, which reports name."""
    with suppress(UserError):
        devices = (environment.get("device") for environment in results.environments())
        return [device for device in devices if isinstance(device, dict) and "cuda" not in device]
    return []


def products_of(devices: Sequence[Mapping[str, Any]]) -> Products | None:
    """The products that a folder began with; None if its rows have none or several."""
    products = {device["products"] for device in devices if "products" in device}
    return products.pop() if len(products) == 1 else None


def differences(device: Mapping[str, Any], earlier: Sequence[Mapping[str, Any]]) -> list[str]:
    """Warn the user if no earlier rows of a folder were made in the dtype and with the products of this run."""

    def words(device: Mapping[str, Any]) -> str:
        return " ".join(f"model.{name}={device[name]}" for name in ("dtype", "products") if name in device)

    others = sorted({words(other) for other in earlier if "products" in other})
    if "cuda" in device or not others or words(device) in others:
        return []
    return [
        f"this run computes with {words(device)}, the rows that the folder has with {' or '.join(others)}: last bits, "
        "and answers where two tokens are nearly tied, may differ; give the same settings to continue alike"
    ]


def dry_run(model: ModelInfo, group: PrefillGroup) -> None:
    """Make every sample once and drop it: raises ValueError for a task or score that does not go with the model."""
    task = group.task
    if task.context_length is not None and task.context_length > model.max_length:
        raise UserError(
            f"task.context_length={task.context_length} is more than {group.model.label} reads; allowed: at most "
            f"{model.max_length} tokens (model.max_length)"
        )
    for cell in group.cells:
        cell.score.check_model(*model.heads, cell.weights)
        if isinstance(cell.policy.layers, TableLayers):
            _check_table(model, cell.policy.layers)
        _ = cell.code  # as it is now: files may be edited while the run goes on
    templated = uses_template(model.tokenizer, group.model.chat, task.chat)
    if templated and group.cells[0].schedule.evict_after == "context":
        split(model.tokenizer, group.model.system, "context", "question")
    stop_tokens(model.tokenizer, task.stop)
    for _ in samples_of(model.tokenizer, group):
        pass


def _check_table(model: ModelInfo, layers: TableLayers) -> None:
    """Raise UserError for a budget table of another model."""
    of_table = layers.table.shape[1:]
    of_model = [*sliding_windows(model.config).values()].count(None), model.heads[1]
    if of_table != of_model:
        raise UserError(
            f"policy.layers.path={layers.path}: the table has {of_table[0]} layers and {of_table[1]} KV heads, but "
            f"this model evicts from {of_model[0]} layers with {of_model[1]} KV heads; kvbench heads writes one for it"
        )
