"""How long a plan will take on this machine, from rates that were measured here; and measuring them."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import fmean

from kvbench.cli.terminal import tell
from kvbench.models.loading.load import ModelInfo, load, model_info
from kvbench.models.prompts.prompt import TokensOf, build
from kvbench.records import ResultsFolder
from kvbench.records.rates import ROOM, Rates, read_rates, write_rates
from kvbench.run.plan import Plan, PrefillGroup
from kvbench.run.runner import by_model
from kvbench.run.timing.estimate import Estimate, estimate
from kvbench.run.timing.rates import kind, machine, measure_rates
from kvbench.support.quantity import duration
from kvbench.tasks.efficiency import Efficiency
from kvbench.tasks.likelihood import Likelihood
from kvbench.tasks.sample import Sample

MEASURE = "--measure"
"""The flag that measures what an estimate needs."""
LOOKED_AT = 3
"""Prompts of a group whose lengths stand for all."""
LOADING = "loading"


@dataclass(frozen=True)
class Costs:
    """Seconds by the key of a group, of loading models, and why some are not known."""

    seconds: dict[str, float]
    loading: float
    unknown: tuple[str, ...]

    @property
    def whole(self) -> str:
        """The sum in words, or what is missing."""
        if self.unknown:
            return f"seconds are not known: {'; '.join(self.unknown)}"
        whole = sum(self.seconds.values())
        return f"about {written(self.loading + whole)} on this machine, {written(self.loading)} of it to start"


def written(seconds: float) -> str:
    """Seconds, minutes or hours."""
    if seconds < 120:
        return duration([seconds])
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"


def costs(plan: Plan, results: ResultsFolder, measure: bool) -> Costs:
    """What is left of a plan. With `measure` rates that are not in the folder are measured first, and kept there.

    Raises ValueError or FileNotFoundError, with `measure`, for a model that cannot be run.
    """
    seconds: dict[str, float] = {}
    unknown: dict[str, None] = {}
    loading = 0.0
    for model, groups in by_model(plan).items():
        if not measure and not (results.path / ROOM).is_dir():  # spares reading the tokenizer
            unknown[_never(model.label)] = None
            continue
        try:
            info = model_info(model)
            lengths = {group.key: _lengths(info, group) for group in groups}
            rates = _rates(info, groups, lengths, results, measure)
        except FileNotFoundError as error:
            if measure:
                raise
            unknown[f"{model.label} is not here ({error})"] = None
            continue
        found = [(group, estimate(group, rates, *lengths[group.key])) for group in groups]
        start = Estimate()
        loading += start.add(rates, LOADING, 1)
        if any(one.unknown for _, one in found) or start.unknown:
            unknown[_never(model.label)] = None
        seconds |= {group.key: one.seconds for group, one in found if not one.unknown}
    return Costs(seconds, loading, tuple(unknown))


def _never(model: str) -> str:
    return f"{MEASURE} measures the rates of {model} on this machine"


def _rates(
    info: ModelInfo,
    groups: Sequence[PrefillGroup],
    lengths: dict[str, tuple[float, float]],
    results: ResultsFolder,
    measure: bool,
) -> Rates:
    """What was measured of a model, and with `measure` what is missing of it."""
    here, weights = machine(info), groups[0].cells[0].weights
    rates = read_rates(results, here, weights)
    new = [group for group in groups if estimate(group, rates, *lengths[group.key]).unknown]
    if not measure or not new:
        return rates
    tell(f"measuring {len({kind(cell) for group in new for cell in group.cells})} kinds of cells")
    started, before = time.perf_counter(), time.process_time()
    loaded = load(info)
    loading = before + time.perf_counter() - started
    longest = round(max(tokens for tokens, _ in lengths.values()))
    curves = measure_rates(loaded, [group.cells for group in new], min(longest, loaded.max_length - 16))
    write_rates(results, here, weights, {LOADING: {1: loading}, **curves})
    return read_rates(results, here, weights)


def _lengths(info: ModelInfo, group: PrefillGroup) -> tuple[float, float]:
    """Tokens of a prompt before the cut and after it: those of the first prompts, on average."""
    task = group.task
    if isinstance(task, (Likelihood, Efficiency)):
        return float(task.context_length or 0), 0.0
    ids = list(islice((sample for unit in group.units for sample in unit.missing), LOOKED_AT))
    prompts = list(_prompts(info, group, ids))
    if not prompts:
        return float(task.context_length or 0), 0.0
    return fmean(one for one, _ in prompts), fmean(other for _, other in prompts)


def _prompts(info: ModelInfo, group: PrefillGroup, ids: Iterable[int]) -> Iterable[tuple[int, int]]:
    cell, spec = group.cells[0], group.model
    for sample in group.task.generate(TokensOf(info.tokenizer), list(ids)):
        if isinstance(sample, Sample):
            room, after = info.max_length - sample.max_new_tokens, cell.schedule.evict_after
            try:
                prompt = build(info.tokenizer, sample, group.task, room, spec.chat, spec.system, after)
            except ValueError:
                continue  # a row with an error, which takes no time
            yield len(prompt.context), len(prompt.question)
