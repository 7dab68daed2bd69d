"""Running a plan: load a model, make the samples, run units, record rows as they come."""

import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch

from kvbench.models.loading.load import LoadedModel, ModelInfo, load, model_info
from kvbench.models.loading.spec import ModelSpec
from kvbench.models.prompts.chat import split, uses_template
from kvbench.models.prompts.prompt import TokensOf, stop_tokens
from kvbench.records import KeptDetail, PromptRecord, ResultsFolder, Row, environment, places
from kvbench.run.claims import Claims, Sharing
from kvbench.run.make_rows import Made, failed
from kvbench.run.perplexity import run_texts
from kvbench.run.plan import Plan, PrefillGroup, PrefillJob
from kvbench.run.prefill_job import run_prefill_job
from kvbench.run.timing.timed import run_timed
from kvbench.support.errors import UserError
from kvbench.tasks.efficiency import Efficiency
from kvbench.tasks.likelihood import Likelihood
from kvbench.tasks.sample import InvalidSample, Sample


@runtime_checkable
class Progress(Protocol):
    """PromptRecord what happens while it happens."""

    def loading(self, model: str) -> None:
        """A model is about to be loaded."""
        ...

    def unit(self, rows: list[Row]) -> None:
        """A unit was recorded."""
        ...


@dataclass
class Outcome:
    """What a run did: rows recorded and failed, prompts read and how many tokens they had, tiles that were
    halved because memory ran out.
    """

    rows: int = 0
    errors: int = 0
    prefills: int = 0
    tokens_prefilled: int = 0
    halved: int = 0


def run(
    plan: Plan, results: ResultsFolder, progress: Progress, kept: KeptDetail = "none", sharing: Sharing | None = None
) -> Outcome:
    """Run what is still to do and what nobody else does. Nothing is loaded or written when nothing is.

    `kept` says what is written beside the new rows about what their cells kept, `sharing` how the folder is shared.

    Rows of a unit are recorded together before the next one starts, so that an interrupt at any moment leaves whole
    units and the same plan goes on from there. Ends when all rows are there, whoever made them. A sample whose data is
    spoilt has rows with an error.

    Raises ValueError or FileNotFoundError, before any row, for a model that cannot be run or a task that cannot make
    its samples; Stopped, between two units, when it was asked to stop.
    """
    sharing = sharing or Sharing()
    since = places(results) if sharing.since is None else sharing.since
    outcome = Outcome()
    infos = {model: model_info(model) for model in by_model(plan)}
    for model, groups in by_model(plan).items():
        for group in groups:
            dry_run(infos[model], group)
    if sharing.cells is not None:
        results.write_sweep(sharing.command, sharing.cells)
    with Claims(results, sharing, since) as claims:
        one = _OneModel(progress, claims.check)
        while plan.rows_to_do:
            for model, groups in by_model(plan).items():
                _run_model(infos[model], groups, results, claims, progress, kept, outcome, one)
            plan = claims.wait(plan)
    outcome.prefills = sum(counters.prefills for counters in one.counters)
    outcome.tokens_prefilled = sum(counters.tokens_prefilled for counters in one.counters)
    outcome.halved = sum(counters.halved for counters in one.counters)
    return outcome


class _OneModel:
    """The model that was loaded last. Another one takes its memory; units that others give up find it still there."""

    def __init__(self, progress: Progress, check: Callable[[], None]) -> None:
        self.counters: list[Any] = []
        self._progress, self._check = progress, check
        self._outlined: ModelInfo | None = None
        self._loaded: LoadedModel | None = None

    def get(self, info: ModelInfo) -> LoadedModel:
        """Load it, unless it is. Raises Stopped when the run was asked to stop meanwhile."""
        if self._loaded is None or self._outlined is not info:
            self._loaded = None  # first, so that memory has room
            self._progress.loading(info.spec.label)
            self._loaded, self._outlined = load(info), info
            self.counters.append(self._loaded.engine.counters)
            self._check()
        return self._loaded


def _run_model(
    info: ModelInfo,
    groups: Sequence[PrefillGroup],
    results: ResultsFolder,
    claims: Claims,
    progress: Progress,
    kept: KeptDetail,
    outcome: Outcome,
    one: _OneModel,
) -> None:
    """Make and record the units that are left to this process. The model is loaded for the first of them."""
    for group in groups:
        where: str | None = None
        for whole, samples in _units(info.tokenizer, group):
            unit = claims.take(group, whole)
            if unit is None:
                continue
            loaded = one.get(info)
            if where is None:
                where = _describe(loaded, group, results)
            asking = [sample for sample in samples if sample.id in unit.missing]
            made = claims.record(_make(loaded, group, unit, asking, where, results, kept))
            if made is not None:
                outcome.rows += len(made.rows)
                outcome.errors += sum(row.error is not None for row in made.rows)
                progress.unit(made.rows)


def _make(
    model: LoadedModel,
    group: PrefillGroup,
    unit: PrefillJob,
    samples: Sequence[Sample | InvalidSample],
    where: str,
    results: ResultsFolder,
    kept: KeptDetail,
) -> Made:
    """The rows of a unit; where it fails as nobody foresaw, rows with that error, and its traceback in a file.

    A device that has failed can do nothing more in this process: its error is raised.
    """
    ways = ((Likelihood, run_texts), (Efficiency, run_timed))
    run_one = next((way for kind, way in ways if isinstance(group.task, kind)), run_prefill_job)
    good = [one for one in samples if isinstance(one, Sample)]
    asked = replace(unit, missing={sample.id: unit.missing[sample.id] for sample in good})
    made = Made([], [], [])
    try:
        if good:
            made = run_one(model, asked, good, where, kept)
            made.prompts.extend(_told(good, made.rows))
    except torch.AcceleratorError:
        raise
    except Exception as error:
        path = results.write_failure(traceback.format_exc())
        said = f"{type(error).__name__}: {error}; traceback in {path.parent.name}/{path.name}"
        made.rows.extend(failed(cell, sample, said, where) for sample in good for cell in asked.missing[sample.id])
    for sample in samples:
        if isinstance(sample, InvalidSample):  # spoilt data: counted, with the error
            made.rows.extend(failed(cell, sample, sample.error, where) for cell in unit.missing[sample.id])
    return made


def by_model(plan: Plan) -> dict[ModelSpec, list[PrefillGroup]]:
    """Groups with work left, models in the order of the plan, so that each is loaded once."""
    by_model: dict[ModelSpec, list[PrefillGroup]] = {}
    for group in plan.groups:
        if group.units:
            by_model.setdefault(group.model, []).append(group)
    return by_model


def dry_run(model: ModelInfo, group: PrefillGroup) -> None:
    """Make every sample once and drop it: what the task cannot do shows before the first row is written.

    Raises ValueError for a task or score that does not go with the model.
    """
    task = group.task
    if task.context_length is not None and task.context_length > model.max_length:
        raise UserError(
            f"task.context_length={task.context_length} is more than {group.model.label} reads: "
            f"at most {model.max_length} tokens (model.max_length)"
        )
    for cell in group.cells:
        cell.score.check_model(*model.heads, cell.weights)
    templated = uses_template(model.tokenizer, group.model.chat, task.chat)
    if templated and group.cells[0].schedule.evict_after == "context":
        split(model.tokenizer, group.model.system, "context", "question")
    stop_tokens(model.tokenizer, task.stop)
    for _ in samples_of(model.tokenizer, group):
        pass


def samples_of(tokenizer: Any, group: PrefillGroup) -> Iterator[Sample | InvalidSample]:
    """The samples of which rows are missing, in ascending order."""
    todo = [sample for unit in group.units for sample in unit.missing]
    return group.task.generate(TokensOf(tokenizer), todo)


def _describe(model: LoadedModel, group: PrefillGroup, results: ResultsFolder) -> str:
    """Keep what the cells are and where their rows are made; returns the name of the latter."""
    where = results.write_environment(environment(model.device))
    for cell in group.cells:
        results.write_cell(cell.id, cell.description)
    return where


def _units(tokenizer: Any, group: PrefillGroup) -> Iterator[tuple[PrefillJob, list[Sample | InvalidSample]]]:
    """Units with their samples, each as soon as its last sample is made."""
    unit_of = {sample: unit for unit in group.units for sample in unit.missing}
    waiting: dict[int, list[Sample | InvalidSample]] = {}
    for sample in samples_of(tokenizer, group):
        unit = unit_of[sample.id]
        asking = waiting.setdefault(unit.key, [])
        asking.append(sample)
        if len(asking) == len(unit.missing):
            yield unit, waiting.pop(unit.key)


def _told(samples: Sequence[Sample], rows: Sequence[Row]) -> Iterator[PromptRecord]:
    """What there is to say about the prompts of rows."""
    prompts = {row.sample: row.prompt_sha256 for row in rows if row.prompt_sha256 is not None}
    for sample in samples:
        if sample.id in prompts:
            yield PromptRecord.of(prompts[sample.id], sample.prompt, sample.references)
