"""A sweep as data: its cells are known before anything runs, so that cells share a prefill wherever they can."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from kvbench.models.loading.spec import ModelSpec
from kvbench.models.prompts.tokens import samples_of
from kvbench.run.cell import Cell, digest
from kvbench.support.errors import UserError
from kvbench.support.grouped import grouped
from kvbench.tasks.task import InvalidSample, Sample, Task


@dataclass(frozen=True)
class PrefillJob:
    """Unit that is read and recorded at once: a prompt, or a context with the questions that samples ask about it.

    missing: the cells that still need each sample. key: the number of the prompt, or of the context, in its group.
    """

    missing: Mapping[int, tuple[Cell, ...]]
    key: int = 0

    def without(self, recorded: Collection[tuple[str, int]]) -> "PrefillJob":
        """Return what is missing if these (cell id, sample) pairs are recorded too."""
        missing = {
            sample: tuple(cell for cell in cells if (cell.id, sample) not in recorded)
            for sample, cells in self.missing.items()
        }
        return replace(self, missing={sample: cells for sample, cells in missing.items() if cells})

    @cached_property
    def places(self) -> dict[tuple[str, int], int]:
        """The missing rows in order: (cell id, sample), and the place of each."""
        rows = ((cell.id, sample) for sample, cells in self.missing.items() for cell in cells)
        return {row: place for place, row in enumerate(rows)}

    @property
    def cells(self) -> tuple[Cell, ...]:
        """The distinct cells."""
        return tuple({cell.id: cell for cells in self.missing.values() for cell in cells}.values())


@dataclass(frozen=True)
class PrefillGroup:
    """Cells that share their prefills. `jobs` are still to do, in the order of the first sample of each."""

    cells: tuple[Cell, ...]
    jobs: tuple[PrefillJob, ...]

    @cached_property
    def key(self) -> str:
        """A hash of what its cells have in common, different for every group."""
        return digest(self.cells[0].prefill_key)

    @property
    def model(self) -> ModelSpec:
        return self.cells[0].model

    @cached_property
    def task(self) -> Task:
        """The task, with the most samples that any of the cells asks for."""
        return max((cell.task for cell in self.cells), key=lambda task: task.num_answers)

    def check_unchanged(self) -> None:
        """Raise MissingFile if the data of the task is no longer what its cells are named by."""
        for task in {id(cell.task): cell.task for cell in self.cells}.values():
            task.check_unchanged()

    def samples(self, tokenizer: Any) -> Iterator[Sample | InvalidSample]:
        """Yield the samples of which rows are missing, in ascending order, as the tokenizer of the model makes them."""
        yield from samples_of(tokenizer, self.model, self.task, [sample for job in self.jobs for sample in job.missing])

    @cached_property
    def rows_to_do(self) -> int:
        """Rows still missing."""
        return sum(len(cells) for job in self.jobs for cells in job.missing.values())


@dataclass(frozen=True)
class Plan:
    """All groups of a sweep, in the order of their first cells."""

    groups: tuple[PrefillGroup, ...]

    @property
    def cells(self) -> tuple[Cell, ...]:
        """The distinct cells."""
        return tuple(cell for group in self.groups for cell in group.cells)

    @property
    def rows(self) -> int:
        """Rows of the finished sweep."""
        return sum(cell.task.num_answers for cell in self.cells)

    @property
    def rows_to_do(self) -> int:
        """Rows still missing."""
        return sum(group.rows_to_do for group in self.groups)

    @property
    def prefills_to_do(self) -> int:
        """Prompts, or contexts, still to read."""
        return sum(len(group.jobs) for group in self.groups)

    def with_jobs(self, jobs: Callable[[PrefillGroup], Iterable[PrefillJob]]) -> "Plan":
        """Return the plan with other jobs to do, given the jobs of each group."""
        return Plan(tuple(replace(group, jobs=tuple(jobs(group))) for group in self.groups))

    def by_model(self) -> dict[ModelSpec, list[PrefillGroup]]:
        """Return groups with work left, models in the order of the plan, so that each is loaded once."""
        return grouped((group for group in self.groups if group.jobs), lambda group: group.model)


MOST_ROWS = 10_000_000
"""Rows of a plan: each is held in memory while it is made."""


def plan(cells: Iterable[Cell], recorded: set[tuple[str, int]]) -> Plan:
    """Group cells that share a prefill and leave out what is `recorded`: (cell id, sample) pairs.

    Of a cell that is listed twice the larger number of samples counts. Raises ValueError for a cell that cannot work
    on any sample, and for more than `MOST_ROWS` rows.
    """
    groups, rows = defaultdict[str, dict[str, Cell]](dict), 0
    for cell in cells:
        cell.check()
        rows += cell.task.num_answers
        if rows > MOST_ROWS:
            raise UserError(
                f"task.samples={cell.task.samples}: the plan has more than {MOST_ROWS} rows; ask for fewer samples "
                "or cells, and for the others in another command: recorded rows are kept"
            )
        group = groups[cell.prefill_key]
        if cell.id not in group or group[cell.id].task.samples < cell.task.samples:
            group[cell.id] = cell
    return Plan(tuple(_group(tuple(members.values()), recorded) for members in groups.values()))


def _group(cells: tuple[Cell, ...], recorded: set[tuple[str, int]]) -> PrefillGroup:
    jobs = defaultdict[int, dict[int, tuple[Cell, ...]]](dict)
    most, started = max(cell.task.num_answers for cell in cells), {cell for cell, _ in recorded}
    complete = all(cell.task.num_answers == most and cell.id not in started for cell in cells)
    for sample in range(most):
        missing = cells
        if not complete:
            missing = tuple(
                cell for cell in cells if sample < cell.task.num_answers and (cell.id, sample) not in recorded
            )
        if missing:
            jobs[cells[0].job_number(sample)][sample] = missing
    return PrefillGroup(cells, tuple(PrefillJob(missing, key) for key, missing in jobs.items()))


def jobs_with_samples(
    made: Iterable[Sample | InvalidSample], group: PrefillGroup
) -> Iterator[tuple[PrefillJob, list[Sample | InvalidSample]]]:
    """Yield jobs with their samples, each as soon as its last sample is made."""
    job_of = {sample: job for job in group.jobs for sample in job.missing}
    job_samples: dict[int, list[Sample | InvalidSample]] = {}
    for sample in made:
        job = job_of[sample.id]
        samples = job_samples.setdefault(job.key, [])
        samples.append(sample)
        if len(samples) == len(job.missing):
            yield job, job_samples.pop(job.key)
