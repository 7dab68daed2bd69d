"""Running a plan: load a model, make the samples, run units, record rows as they come."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from kvbench.models.load import LoadedModel, load
from kvbench.models.prompt import count_tokens
from kvbench.models.spec import ModelSpec
from kvbench.plan import Plan, PrefillGroup
from kvbench.records import Recorder, ResultsFolder, Row, environment
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


def run(
    plan: Plan, results: ResultsFolder, progress: Progress, loader: Callable[[ModelSpec], LoadedModel] = load
) -> Outcome:
    """Run what is still to do. Nothing is loaded or written when nothing is.

    Rows of a unit are recorded together before the next one starts, so that an interrupt at any moment leaves whole
    units and the same plan goes on from there. Raises ValueError or FileNotFoundError, before any row, for a model that
    cannot be loaded or a task that cannot make its samples.
    """
    outcome = Outcome()
    with Recorder(results) as recorder:
        for model, groups in _by_model(plan):
            progress.loading(model.label)
            loaded = loader(model)
            counters = loaded.engine.counters
            before = (counters.prefills, counters.tokens_prefilled)
            for group in groups:
                for rows in _run_group(loaded, group, results):
                    recorder.append(rows)
                    outcome.rows += len(rows)
                    outcome.errors += sum(row.error is not None for row in rows)
                    progress.unit(rows)
            outcome.prefills += counters.prefills - before[0]
            outcome.tokens_prefilled += counters.tokens_prefilled - before[1]
    return outcome


def _by_model(plan: Plan) -> list[tuple[ModelSpec, list[PrefillGroup]]]:
    """Groups with work left, models in the order of the plan, so that each is loaded once."""
    by_model: dict[ModelSpec, list[PrefillGroup]] = {}
    for group in plan.groups:
        if group.units:
            by_model.setdefault(group.model, []).append(group)
    return list(by_model.items())


def _run_group(model: LoadedModel, group: PrefillGroup, results: ResultsFolder) -> Iterator[list[Row]]:
    where = None
    todo = {unit.sample: unit.cells for unit in group.units}
    for sample in group.task.generate(lambda text: count_tokens(model.tokenizer, text), todo):
        if where is None:
            where = results.write_environment(environment(model.device))
            for cell in group.cells:
                results.write_cell(cell.id, cell.description)
        yield run_unit(model, sample, todo[sample.id], where)
