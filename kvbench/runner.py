"""Running a plan: load a model, make the samples, run units, record rows as they come."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from kvbench.likelihood import run_texts
from kvbench.models.chat import split, uses_template
from kvbench.models.load import LoadedModel, Outline, load, outline
from kvbench.models.prompt import TokensOf, stop_tokens
from kvbench.models.spec import ModelSpec
from kvbench.plan import Plan, PrefillGroup, Unit
from kvbench.records import KeptDetail, Recorder, ResultsFolder, Row, environment
from kvbench.rows import Made, failed
from kvbench.tasks.likelihood import Likelihood
from kvbench.tasks.sample import Sample, Unreadable
from kvbench.unit import run_unit


@runtime_checkable
class Progress(Protocol):
    """Told what happens while it happens."""

    def loading(self, model: str) -> None:
        """A model is about to be loaded."""
        ...

    def unit(self, rows: list[Row]) -> None:
        """A unit was recorded."""
        ...


@dataclass
class Outcome:
    """What a run did: rows recorded and failed, prompts read and how many tokens they had."""

    rows: int = 0
    errors: int = 0
    prefills: int = 0
    tokens_prefilled: int = 0


def run(plan: Plan, results: ResultsFolder, progress: Progress, kept: KeptDetail = "none") -> Outcome:
    """Run what is still to do. Nothing is loaded or written when nothing is.

    `kept` says what is written beside the new rows about what their cells kept.

    Rows of a unit are recorded together before the next one starts, so that an interrupt at any moment leaves whole
    units and the same plan goes on from there. A sample whose data is spoilt has rows with an error. Raises ValueError
    or FileNotFoundError, before any row, for a model that cannot be run or a task that cannot make its samples.
    """
    outcome = Outcome()
    work = by_model(plan)
    outlines = {model: outline(model) for model in work}
    for model, groups in work.items():
        for group in groups:
            rehearse(outlines[model], group)
    with Recorder(results) as recorder:
        for model, groups in work.items():
            progress.loading(model.label)
            loaded = load(outlines[model])
            for group in groups:
                for made in _run_group(loaded, group, results, kept):
                    recorder.append(made.rows, _beside(made))
                    outcome.rows += len(made.rows)
                    outcome.errors += sum(row.error is not None for row in made.rows)
                    progress.unit(made.rows)
            outcome.prefills += loaded.engine.counters.prefills
            outcome.tokens_prefilled += loaded.engine.counters.tokens_prefilled
    return outcome


def _beside(made: Made) -> dict[str, list[str]]:
    """Lines about the rows of a unit, by the folder they go to."""
    return {"kept": [one.to_json() for one in made.kept], "curves": [one.to_json() for one in made.curves]}


def by_model(plan: Plan) -> dict[ModelSpec, list[PrefillGroup]]:
    """Groups with work left, models in the order of the plan, so that each is loaded once."""
    by_model: dict[ModelSpec, list[PrefillGroup]] = {}
    for group in plan.groups:
        if group.units:
            by_model.setdefault(group.model, []).append(group)
    return by_model


def rehearse(model: Outline, group: PrefillGroup) -> None:
    """Make every sample once and drop it: what the task cannot do shows before the first row is written.

    Raises ValueError for a task or score that does not go with the model.
    """
    task = group.task
    if task.context_length is not None and task.context_length > model.max_length:
        raise ValueError(
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


def samples_of(tokenizer: Any, group: PrefillGroup) -> Iterator[Sample | Unreadable]:
    """The samples of which rows are missing, in ascending order."""
    todo = [sample for unit in group.units for sample in unit.missing]
    return group.task.generate(TokensOf(tokenizer), todo)


def _run_group(model: LoadedModel, group: PrefillGroup, results: ResultsFolder, kept: KeptDetail) -> Iterator[Made]:
    where = results.write_environment(environment(model.device))
    for cell in group.cells:
        results.write_cell(cell.id, cell.description)
    run_one = run_texts if isinstance(group.task, Likelihood) else run_unit
    unit_of = {sample: unit for unit in group.units for sample in unit.missing}
    waiting: dict[int, list[Sample | Unreadable]] = {}
    for sample in samples_of(model.tokenizer, group):
        unit = unit_of[sample.id]
        asking = waiting.setdefault(min(unit.missing), [])
        asking.append(sample)
        if len(asking) == len(unit.missing):
            del waiting[min(unit.missing)]
            good = [one for one in asking if isinstance(one, Sample)]
            made = run_one(model, _only(unit, good), good, where, kept) if good else Made([], [])
            made.rows.extend(_unread(unit, asking, where))
            yield made


def _only(unit: Unit, samples: list[Sample]) -> Unit:
    """The part of a unit that asks for these samples."""
    return Unit({sample.id: unit.missing[sample.id] for sample in samples})


def _unread(unit: Unit, samples: list[Sample | Unreadable], environment: str) -> Iterator[Row]:
    """The rows of samples whose data is spoilt: counted, with the error."""
    for sample in samples:
        if isinstance(sample, Unreadable):
            yield from (failed(cell, sample, sample.error, environment) for cell in unit.missing[sample.id])
