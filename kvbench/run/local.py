"""Models that run here: loaded once, evicted from and decoded by this process."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from pkgutil import resolve_name
from typing import Any

import torch

from kvbench.models.engine import Counters
from kvbench.models.linear_layers import Products
from kvbench.models.loading.architecture import sliding_windows
from kvbench.models.loading.load import LoadedModel, ModelInfo, choose_device, load, model_info
from kvbench.models.loading.spec import ModelSpec, check_model_unchanged, describe_model
from kvbench.models.prompts.chat import split, uses_template
from kvbench.models.prompts.tokens import stop_tokens
from kvbench.records.environment import environment
from kvbench.records.folder import ResultsFolder
from kvbench.records.sidecars import KeptDetail, PromptRecord
from kvbench.run.plan import PrefillGroup, PrefillJob
from kvbench.run.procedure import Procedure, Samples
from kvbench.run.progress import Progress
from kvbench.run.rows import JobResult, RowError
from kvbench.support.errors import OverLimit, UserError, out_of_memory
from kvbench.tasks.task import InvalidSample, Sample, Task


class Local:
    """The backend of models whose weights are files."""

    def prepare(self, spec: ModelSpec) -> ModelInfo:
        return model_info(spec)

    def check(self, prepared: ModelInfo, group: PrefillGroup) -> None:
        check_group(prepared, group)

    def open(self, prepared: ModelInfo, results: ResultsFolder, progress: Progress) -> "LocalSession":
        progress.loading(prepared.spec.label)
        earlier = cpu_devices(results)
        model = load(prepared, products_of(earlier))
        check_model_unchanged(prepared.spec, describe_model(prepared.spec)["sha256"])
        for note in (*model.notes, *differences(model.device, earlier)):
            progress.noted(note)
        return LocalSession(model)

    def devices(self, spec: ModelSpec) -> set[torch.device]:
        others = range(1, torch.cuda.device_count() if spec.device_map is not None else 1)
        return {choose_device(spec)} | {torch.device("cuda", index) for index in others}

    def procedure_of(self, task: Task) -> type[Procedure]:
        return resolve_name(task.procedure)


@dataclass(frozen=True)
class LocalSession:
    """A loaded model."""

    model: LoadedModel

    @property
    def work(self) -> Counters:
        return self.model.engine.counters

    @contextmanager
    def procedure(self, group: PrefillGroup, results: ResultsFolder, kept: KeptDetail) -> Iterator[Procedure]:
        yield resolve_name(group.task.procedure)(self.model, group, results, kept)


class OneByOne:
    """A procedure of a loaded model that makes each job by itself."""

    def __init__(self, model: LoadedModel, group: PrefillGroup, results: ResultsFolder, kept: KeptDetail) -> None:
        self.model, self.results = model, results
        self.kept: KeptDetail = kept
        self._environment = cache(lambda **other: results.write_environment(environment(model.device | other)))
        self.environment_id = self._environment()

    @property
    def num_waiting(self) -> int:
        return 0

    def rows(self, job: PrefillJob, samples: Sequence[Sample]) -> JobResult:
        """Return the rows of a job whose samples are valid, and their sidecar lines."""
        raise NotImplementedError

    def make(self, job: PrefillJob, samples: Samples, most_waiting: int) -> Iterator[JobResult]:
        yield self.result(job, samples)

    def finish(self) -> Iterator[JobResult]:
        yield from ()

    def result(self, job: PrefillJob, samples: Samples, made: JobResult | None = None) -> JobResult:
        """Return the rows of a job, `made` or not yet. Exceptions become rows with that error, but OverLimit and
        exceptions of a device are raised.
        """
        valid = [sample for sample in samples if isinstance(sample, Sample)]
        result = JobResult(job, self.environment_id)
        try:
            if valid:
                valid_job = replace(job, missing={sample.id: job.missing[sample.id] for sample in valid})
                made = made or self.rows(valid_job, valid)
                hashes = {row.sample: row.prompt_sha256 for row in made.rows if row.prompt_sha256 is not None}
                for sample in valid:
                    if (name := hashes.get(sample.id)) is not None:
                        texts = made.token_texts.get(name)
                        made.prompts.append(PromptRecord.of(name, sample.prompt, sample.references, texts))
                chunk = {} if made.chunk is None else {"prefill_chunk": made.chunk}
                for place, row in enumerate(made.rows):
                    if other := chunk | ({"steps": made.stepped[row.cell]} if row.cell in made.stepped else {}):
                        made.rows[place] = replace(row, environment=self._environment(**other))
                result.add(made)
        except OverLimit:
            raise
        except Exception as error:
            if isinstance(error, torch.AcceleratorError) and not out_of_memory(error):
                raise
            for sample in valid:
                result.fail(sample, RowError.traced(error))
        for sample in samples:
            if isinstance(sample, InvalidSample):
                result.fail(sample, sample.error)
        for trace in result.traces:
            self.results.write_failure(trace)
        return result


def cpu_devices(results: ResultsFolder) -> list[dict[str, Any]]:
    """Return the `device` of every environment of a folder that is a CPU; none if a file is damaged, which reports
    name.
    """
    with suppress(UserError):
        devices = (environment.get("device") for environment in results.environments())
        return [device for device in devices if isinstance(device, dict) and "cuda" not in device]
    return []


def products_of(devices: Sequence[Mapping[str, Any]]) -> Products | None:
    """Return the products that a folder began with; None if its rows have none or several."""
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


def check_group(model: ModelInfo, group: PrefillGroup) -> None:
    """Check a group before its model is loaded: prompt length, heads, template, stop tokens, and every sample once.

    The hash of the code is taken here. Raises ValueError for a task or score that does not go with the model.
    """
    task = group.task
    if task.context_length is not None and task.context_length > model.max_length:
        raise UserError(
            f"task.context_length={task.context_length} is more than {group.model.label} reads; allowed: at most "
            f"{model.max_length} tokens (model.max_length)"
        )
    global_layers = [*sliding_windows(model.config).values()].count(None)
    for cell in group.cells:
        cell.score.check_model(*model.heads, cell.weights)
        cell.policy.layers.check_model(global_layers, model.heads[1])
        _ = cell.code  # as it is now: files may be edited while the run goes on
    templated = uses_template(model.tokenizer, group.model.chat, task.chat)
    if templated and group.cells[0].schedule.evict_after == "context":
        split(model.tokenizer, group.model.system, "context", "question")
    stop_tokens(model.tokenizer, task.stop)
    for _ in group.samples(model.tokenizer):
        pass
