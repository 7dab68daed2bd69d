"""A probe and the cells that it judges: composed from a command line, and measured for every cell and sample."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, get_origin, get_type_hints

import torch

from kvbench.config.cells import CellBuilder
from kvbench.config.compose import combinations
from kvbench.config.entries import Tree, class_of, load_entry, options
from kvbench.config.overrides import Override, Value, parse
from kvbench.config.settings import build
from kvbench.eviction.scores.attn import Attention
from kvbench.extras.probes import DEFAULT
from kvbench.extras.probes.numbers import probed_already, write_probed
from kvbench.extras.probes.probe import Probe
from kvbench.extras.probes.scene import Scene
from kvbench.models.loading.load import LoadedModel, load, model_info
from kvbench.models.loading.spec import check_model_unchanged, describe_model
from kvbench.papers.cells import unless_named
from kvbench.records import ResultsFolder, environment
from kvbench.run.cell import Cell, canonical, digest
from kvbench.run.local import check_group
from kvbench.run.plan import Plan, PrefillGroup, jobs_with_samples, plan
from kvbench.run.prefill_job import prefill, prompt_of
from kvbench.run.progress import Progress
from kvbench.support.errors import UserError
from kvbench.support.facts import ALL_READ, SIZED_BUDGET, UNCHANGED, Claim, check
from kvbench.support.plugins import foreign
from kvbench.support.text import closest
from kvbench.tasks.task import InvalidSample, Sample
from kvbench.work.planned import Tell, checked, refuse_around

PREFIX = "probe."
"""How settings of the probe itself begin."""
NEEDS = {ALL_READ: "is about what is kept, all of which it reads", UNCHANGED: "is about which pairs are kept"}
JUDGED = Claim("a probe", "", NEEDS)
"""What a probe needs of the cells that it judges."""
SIZED = Claim("a probe", "", {SIZED_BUDGET: "compares what is kept with as many pairs"})
"""What a probe needs whose numbers depend on the budget."""


@dataclass(frozen=True)
class Recorded:
    """One cell on one sample, as progress counts it."""

    error: str | None


@dataclass(frozen=True)
class Probing:
    """A probe and the cells that it judges, each once."""

    probe: Probe
    cells: tuple[Cell, ...]

    @cached_property
    def samples(self) -> dict[str, int]:
        """The number of samples of each cell, by its name in rows."""
        return {self.name(cell): cell.task.samples for cell in self.cells}

    def name(self, cell: Cell) -> str:
        """Sixteen hex digits of the SHA-256 of everything that the numbers of a cell depend on."""
        return digest(canonical(self.description(cell)))

    def description(self, cell: Cell) -> dict[str, Any]:
        settings = {"name": self.probe.name} | asdict(self.probe)  # type: ignore[call-overload]
        if code := foreign(self.probe):
            settings["plugins"] = code
        return {**cell.description, "probe": json.loads(json.dumps(settings))}

    def plan(self, results: ResultsFolder, retry_errors: bool = False) -> Plan:
        """Return the cells and samples that are not measured yet."""
        measured = probed_already(results.path, self.samples, retry_errors)
        ids = {self.name(cell): cell.id for cell in self.cells}
        return plan(self.cells, {(ids[name], sample) for name, sample in measured})


def probing(probe: Probe, cells: Iterable[Cell]) -> Probing:
    """Return the cells as the probe judges them; cells that differ only in settings that the probe ignores become one.

    Raises UserError for a cell that it cannot judge.
    """
    judged: dict[str, Cell] = {}
    for cell in map(probe.judged, cells):
        cell.check()
        if cell.task.temperature:
            raise UserError(f"task.temperature={cell.task.temperature}: a probe draws no answers; leave it out")
        check((JUDGED, *((SIZED,) if probe.reads_budget else ()), *cell.eviction.claims(cell.task, cell.schedule)))
        probe.read_for(cell)
        before = judged.get(cell.id)
        if before is None or before.task.samples < cell.task.samples:
            judged[cell.id] = cell
    return Probing(probe, tuple(judged.values()))


def probing_of(
    name: str, words: Sequence[str], tell: Tell, folder: Path | None = None
) -> tuple[Probing, ResultsFolder]:
    """Return the probe of a name with the cells of a command line, and where its numbers go.

    Raises UserError for words that cannot be read, unknown settings, and cells that the probe cannot judge.
    """
    usual = parse(load_entry("probe", name).get("usual", []))
    overrides = parse(words)
    settings = [override for override in overrides if not override.key.startswith(PREFIX)]
    refuse_around(settings, "kvbench probe")
    results_dir = next((override for override in settings if override.key == "results.dir"), None)
    if results_dir is not None and folder is not None:
        raise UserError(f"{results_dir.text} and --results {folder} name the same folder: give only one of them")
    probe = probe_of(name, overrides)
    defaults = unless_named(usual, settings)
    if results_dir is None:
        path = str(folder or DEFAULT)
        defaults.append(Override(f"results.dir={path}", "results.dir", (Value(path, path),)))
    results, cells = checked([*defaults, *settings], tell)
    return probing(probe, cells), ResultsFolder(results.dir)


def probe_of(name: str, overrides: Iterable[Override]) -> Probe:
    """Return the probe of a name with the settings among `overrides` that are the probe's."""
    tree = {key: value for key, value in load_entry("probe", name).items() if key != "usual"}
    return build("probe", _with_settings(tree, [each for each in overrides if each.key.startswith(PREFIX)]))


def _with_settings(tree: Tree, overrides: Iterable[Override]) -> Tree:
    """Return settings of a probe's file with settings of the command line; a list may be written without brackets."""
    allowed = sorted(key for key in tree if key not in ("_target_", "name"))
    hints = get_type_hints(class_of("probe", tree))
    for override in overrides:
        key = override.key.removeprefix(PREFIX)
        if key not in allowed:
            names = [PREFIX + name for name in allowed]
            raise UserError(f"unknown setting {override.key}: {closest(override.key, names)}")
        values = [value.read for value in override.values]
        if get_origin(hints[key]) is tuple:
            tree[key] = [item for value in values for item in (value if isinstance(value, list) else [value])]
        elif len(values) > 1:
            raise UserError(f"{override.text} lists {len(values)} values: name one")
        else:
            tree[key] = values[0]
    if isinstance(name := tree.get("against"), str):
        if name not in options("score"):
            nearest = closest(name, options("score"))
            raise UserError(f"unknown probe.against {name}: {nearest}, or null for the true error")
        tree["against"] = CellBuilder().cell(combinations(parse(["policy=plain", f"score={name}"]))[0]).score
    return tree


def run_probe(probing: Probing, todo: Plan, results: ResultsFolder, progress: Progress) -> None:
    """Measure what is missing; the numbers of a sample and cell are recorded before the next begins.

    Raises UserError or MissingFile, before any number, for a model that cannot be run or a task that cannot make one of
    its samples.
    """
    work = todo.by_model()
    infos = {model: model_info(model) for model in work}
    for model, groups in work.items():
        for group in groups:
            check_group(infos[model], group)
    for model, groups in work.items():
        progress.loading(model.label)
        loaded = load(infos[model])
        check_model_unchanged(model, describe_model(model)["sha256"])
        hardware = results.write_environment(environment(loaded.device))
        for group in groups:
            for cell in group.cells:
                results.write_cell(probing.name(cell), probing.description(cell))
            for recorded in _run_group(loaded, group, probing, results, hardware):
                progress.recorded(recorded)


def _run_group(
    model: LoadedModel, group: PrefillGroup, probing: Probing, results: ResultsFolder, hardware: str
) -> Iterator[list[Recorded]]:
    """Yield the records of each prefill job; a context that samples share is prefilled again for each of them."""
    for job, samples in jobs_with_samples(group.samples(model.tokenizer), group):
        recorded = []
        for sample in samples:
            for cell, prompt, numbers in _measured(model, sample, job.missing[sample.id], probing.probe):
                group.check_unchanged()
                row = {**_columns(probing, cell, sample), **prompt, "environment": hardware}
                write_probed(results.path, row, numbers)
                recorded.append(Recorded(numbers[0].get("error") if numbers else None))
        yield recorded


def _measured(
    model: LoadedModel, sample: Sample | InvalidSample, cells: Iterable[Cell], probe: Probe
) -> Iterator[tuple[Cell, dict[str, Any], list[Mapping[str, Any]]]]:
    """For each cell: the columns that describe the prompt, and the numbers or an `error`."""
    cells = tuple(cells)
    if isinstance(sample, InvalidSample):
        for cell in cells:
            yield cell, {}, [{"error": sample.error}]
        return
    columns: dict[str, Any] = {"context_sha256": sample.context_sha256}
    try:
        prompt = prompt_of(model, sample, cells[0])
        columns["prompt_tokens"] = prompt.tokens
        last_query = cells[0].with_method(policy=replace(cells[0].policy, window=1, phases=None), score=Attention())
        recorded = (last_query, *(variant for cell in cells for variant in probe.read_for(cell)))
        scene = Scene(model, prompt, prefill(model, {sample.id: prompt}, recorded))
    except ValueError as error:
        for cell in cells:
            yield cell, columns, [{"error": str(error)}]
        return
    for cell in cells:
        try:
            with torch.inference_mode():
                numbers: list[Mapping[str, Any]] = [vars(number) for number in probe.measure(scene, cell)]
        except ValueError as error:
            numbers = [{"error": str(error)}]
        yield cell, columns, numbers


def _columns(probing: Probing, cell: Cell, sample: Sample | InvalidSample) -> dict[str, Any]:
    return {
        "probe": probing.probe.name,
        "cell": probing.name(cell),
        "model": cell.model.label,
        "task": cell.task.name,
        "context_length": cell.task.context_length,
        "policy": cell.eviction.policy_label,
        "score": cell.eviction.score_label,
        "budget": str(cell.budget) if probing.probe.reads_budget and "budget" in cell.policy.accepts else None,
        "schedule": str(cell.schedule),
        "seed": cell.seed,
        "sample": sample.id,
    }
