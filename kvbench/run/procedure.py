"""Interfaces between the one runner, tasks and models: how jobs become rows, and where answers come from."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pkgutil import resolve_name
from typing import Any, Protocol

from kvbench.models.loading.spec import ModelSpec
from kvbench.records.folder import ResultsFolder
from kvbench.records.sidecars import KeptDetail
from kvbench.run.plan import PrefillGroup, PrefillJob
from kvbench.run.progress import Progress, WorkDone
from kvbench.run.rows import JobResult
from kvbench.tasks.task import InvalidSample, Sample, Task

Samples = Sequence[Sample | InvalidSample]


class Procedure(Protocol):
    """Makes the rows of a group. What one sample cannot do becomes a row with its `error`."""

    @classmethod
    def when(cls, group: PrefillGroup) -> str:
        """Say when the cells of a group evict, for a plan."""
        ...

    @classmethod
    def cost(cls, group: PrefillGroup) -> str:
        """Say what is left to read and to answer, for a plan: an upper bound where the task says one."""
        ...

    @property
    def num_waiting(self) -> int:
        """Jobs that wait for others."""
        ...

    def make(self, job: PrefillJob, samples: Samples, most_waiting: int) -> Iterator[JobResult]:
        """Yield the results that there are with this job: none if it waits, as at most `most_waiting` jobs do."""
        ...

    def finish(self) -> Iterator[JobResult]:
        """Yield the results of the jobs that wait."""
        ...


class Session(Protocol):
    """A model that answers. work: done so far."""

    @property
    def work(self) -> WorkDone: ...

    def procedure(
        self, group: PrefillGroup, results: ResultsFolder, kept: KeptDetail
    ) -> AbstractContextManager[Procedure]:
        """Open what makes the rows of a group. Its environment is written to `results`."""
        ...


class Backend(Protocol):
    """Where the answers of a model come from; a `ModelSpec` names its own."""

    def prepare(self, spec: ModelSpec) -> Any:
        """Return all of a model but its weights, its `tokenizer` too. Raises UserError or MissingFile."""
        ...

    def check(self, prepared: Any, group: PrefillGroup) -> None:
        """Make every sample once and drop it. Raises ValueError for a task that does not go with the model."""
        ...

    def open(self, prepared: Any, results: ResultsFolder, progress: Progress) -> Session:
        """Load the model. results: what it goes on with."""
        ...

    def devices(self, spec: ModelSpec) -> set[Any]:
        """Return the devices of this machine, as torch names them, that a model takes."""
        ...

    def procedure_of(self, task: Task) -> type[Procedure]:
        """Return the procedure of a task."""
        ...


def backend_of(spec: ModelSpec) -> Backend:
    """Return the backend that a model names."""
    return resolve_name(spec.backend)()


def procedure_of(group: PrefillGroup) -> type[Procedure]:
    """Return the procedure of a group."""
    return backend_of(group.model).procedure_of(group.task)
