"""Running a probe: the cells that it judges, what of them is there already, and the numbers of the rest."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol, cast, runtime_checkable

import torch

from kvbench.eviction.scores.attn import Attention
from kvbench.models.loading.load import LoadedModel, load, model_info
from kvbench.probes.probe import Measured, Probe
from kvbench.probes.scene import Scene
from kvbench.records import ResultsFolder, environment
from kvbench.records.probed import probed_already, write_probed
from kvbench.run.identity import canonical, describe, digest
from kvbench.run.plan import Cell, Plan, PrefillGroup, plan
from kvbench.run.prefill_job import prompt_of, read
from kvbench.run.runner import by_model, dry_run, samples_of
from kvbench.support.plugins import foreign
from kvbench.tasks.sample import InvalidSample, Sample


@runtime_checkable
class Progress(Protocol):
    """PromptRecord what happens while it happens, as `kvbench.run.runner.Progress` is."""

    def loading(self, model: str) -> None:
        """A model is about to be loaded."""
        ...

    def unit(self, rows: list[Any]) -> None:
        """A unit was recorded: one thing with an `error` for each cell and sample of it."""
        ...


@dataclass(frozen=True)
class Done:
    """One cell on one sample."""

    error: str | None


@dataclass(frozen=True)
class Probing:
    """A probe and the cells that it judges, each once."""

    probe: Probe
    cells: tuple[Cell, ...]

    @cached_property
    def samples(self) -> dict[str, int]:
        """How many samples are asked for, by the name that a cell has in rows."""
        return {self.name(cell): cell.task.samples for cell in self.cells}

    def name(self, cell: Cell) -> str:
        """Sixteen hex digits of the SHA-256 of everything that the numbers of a cell depend on."""
        return digest(canonical(self.description(cell)))

    def description(self, cell: Cell) -> dict[str, Any]:
        """That of the cell, and the probe's."""
        own = describe(self.probe)
        if code := foreign(self.probe):
            own["plugins"] = code
        return {**cell.description, "probe": json.loads(json.dumps(own))}

    def plan(self, results: ResultsFolder, retry_errors: bool = False) -> Plan:
        """What is still to do."""
        there = probed_already(results.path, self.samples, retry_errors)
        named = {self.name(cell): cell.id for cell in self.cells}
        return plan(self.cells, {(named[name], sample) for name, sample in there})


def probing(probe: Probe, cells: Iterable[Cell]) -> Probing:
    """The cells as the probe judges them, without those that differ only in what plays no part.

    Raises ValueError for a cell that it cannot judge.
    """
    found: dict[str, Cell] = {}
    for cell in map(probe.judged, cells):
        cell.check()
        probe.read_for(cell)
        known = found.get(cell.id)
        if known is None or known.task.samples < cell.task.samples:
            found[cell.id] = cell
    return Probing(probe, tuple(found.values()))


def run_probe(asked: Probing, todo: Plan, results: ResultsFolder, progress: Progress) -> None:
    """Measure what is still to do; numbers of a sample and cell are recorded before the next begins.

    Raises ValueError or FileNotFoundError, before any number, for a model that cannot be run or a task that cannot make
    one of its samples.
    """
    work = by_model(todo)
    infos = {model: model_info(model) for model in work}
    for model, groups in work.items():
        for group in groups:
            dry_run(infos[model], group)
    for model, groups in work.items():
        progress.loading(model.label)
        loaded = load(infos[model])
        where = results.write_environment(environment(loaded.device))
        for group in groups:
            for cell in group.cells:
                results.write_cell(asked.name(cell), asked.description(cell))
            for done in _run_group(loaded, group, asked, results, where):
                progress.unit(done)


def _run_group(
    model: LoadedModel, group: PrefillGroup, asked: Probing, results: ResultsFolder, where: str
) -> Iterator[list[Done]]:
    """What was done of each unit; contexts that samples share are read again for each of them."""
    unit_of = {sample: unit for unit in group.units for sample in unit.missing}
    left = {id(unit): len(unit.missing) for unit in group.units}
    finished: dict[int, list[Done]] = {}
    for sample in samples_of(model.tokenizer, group):
        unit = unit_of[sample.id]
        done = finished.setdefault(id(unit), [])
        for cell, told, numbers in _measured(model, sample, unit.missing[sample.id], asked.probe):
            write_probed(results.path, {**_asked(asked, cell, sample), **told, "environment": where}, numbers)
            done.append(Done(numbers[0].get("error") if numbers else None))
        left[id(unit)] -= 1
        if not left[id(unit)]:
            yield finished.pop(id(unit))


def _measured(
    model: LoadedModel, sample: Sample | InvalidSample, cells: Iterable[Cell], probe: Probe
) -> Iterator[tuple[Cell, dict[str, Any], list[Mapping[str, Any]]]]:
    """The numbers of each cell on one sample, or why there are none."""
    cells = tuple(cells)
    if isinstance(sample, InvalidSample):
        for cell in cells:
            yield cell, {}, [{"error": sample.error}]
        return
    told: dict[str, Any] = {"context_sha256": hashlib.sha256(sample.context.encode()).hexdigest()}
    try:
        prompt = prompt_of(model, sample, cells[0])
        told["prompt_tokens"] = prompt.tokens
        last = replace(cells[0], policy=replace(cells[0].policy, window=1, phases=None), score=Attention())
        wanted = (last, *(one for cell in cells for one in probe.read_for(cell)))
        scene = Scene(model, prompt, read(model, {sample.id: prompt}, wanted))
    except ValueError as error:
        for cell in cells:
            yield cell, told, [{"error": str(error)}]
        return
    for cell in cells:
        try:
            numbers: list[Mapping[str, Any]] = [vars(one) for one in _look(probe, scene, cell)]
        except ValueError as error:
            numbers = [cast(Mapping[str, Any], {"error": str(error)})]
        yield cell, told, numbers


def _look(probe: Probe, scene: Scene, cell: Cell) -> list[Measured]:
    with torch.inference_mode():
        return list(probe.measure(scene, cell))


def _asked(asked: Probing, cell: Cell, sample: Sample | InvalidSample) -> dict[str, Any]:
    return {
        "probe": asked.probe.name,
        "cell": asked.name(cell),
        "model": cell.model.label,
        "task": cell.task.name,
        "context_length": cell.task.context_length,
        "policy": cell.policy_label,
        "score": cell.score_label,
        "budget": str(cell.budget) if asked.probe.reads_budget and "budget" in cell.policy.takes else None,
        "schedule": str(cell.schedule),
        "seed": cell.seed,
        "sample": sample.id,
    }
