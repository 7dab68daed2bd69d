"""The one runner: take a job of a plan, make its rows, record them; whatever its task measures and whoever answers."""

import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Any, Protocol

from kvbench.models.loading.spec import ModelSpec
from kvbench.records.folder import ResultsFolder
from kvbench.records.sidecars import KeptDetail
from kvbench.run.plan import Plan, PrefillGroup, PrefillJob, jobs_with_samples
from kvbench.run.procedure import Backend, Procedure, Session, backend_of
from kvbench.run.progress import Progress, RunStats, Unseen, WorkDone
from kvbench.run.rows import JobResult
from kvbench.support.errors import StopRequested


class JobSource(Protocol):
    """Which jobs of a plan this process makes: those that it takes, of one group at a time."""

    def take(self, group: PrefillGroup, job: PrefillJob) -> PrefillJob | None:
        """Take a job: its missing part, or None if it is not ours. Raises as `check`."""
        ...

    def record(self, result: JobResult) -> JobResult | None:
        """Record the result of a job that was taken; None, and nothing recorded, if it is no longer ours."""
        ...

    def share(self, left: int) -> int:
        """Return how many of `left` jobs to take together."""
        ...

    def left(self, plan: Plan) -> Plan:
        """Return the part of a plan that nobody has recorded yet."""
        ...

    def wait(self, plan: Plan) -> Plan:
        """Wait until others have recorded what is left, or given up some of it: that is returned. Raises as `check`."""
        ...

    def request(self) -> None:
        """Record what the command requests: once a model answers, or others have made everything."""
        ...

    def loaded(self, model: str, seconds: float) -> None:
        """Note how long a model took to load."""
        ...

    def check(self) -> None:
        """Raise StopRequested if the run was asked to stop."""
        ...


@dataclass
class Opened:
    """The model that was opened last, for several runs of one process."""

    spec: ModelSpec | None = None
    session: Session | None = None


def run(
    plan: Plan,
    results: ResultsFolder,
    jobs: AbstractContextManager[JobSource],
    progress: Progress | None = None,
    kept: KeptDetail = "none",
    opened: Opened | None = None,
    backend_of: Callable[[ModelSpec], Backend] = backend_of,
) -> RunStats:
    """Run what is still to do and what nobody else does. If nothing is, nothing is loaded or written.

    opened: the model of an earlier run, which goes on if it is the same, and is replaced by the last of this one.

    All rows of a job are recorded before the next one starts: an interrupt at any moment leaves complete jobs, and the
    same plan continues from there. Ends when all rows are there, whoever made them. A sample with invalid data gets
    rows with an error.

    Raises ValueError or FileNotFoundError, before any row, for a model that cannot be run or a task that cannot make
    its samples; StopRequested, between two jobs, if the run was asked to stop.
    """
    began, work = time.perf_counter(), plan.by_model()
    backends = {model: backend_of(model) for model in work}
    prepared = {model: backend.prepare(model) for model, backend in backends.items()}
    for model, groups in work.items():
        for group in groups:
            backends[model].check(prepared[model], group)
    with jobs as source:
        running = _Run(results, source, progress or Unseen(), kept, opened or Opened(), began)
        plan = source.left(plan)
        while plan.rows_to_do:
            left = sum(len(group.jobs) for group in plan.groups)
            for model, groups in plan.by_model().items():
                for group in groups:
                    running.run_group(backends[model], prepared[model], group, left)
                    left -= len(group.jobs)
            plan = source.wait(plan)
        source.request()  # where other processes made everything
    running.outcome.add(running.works)
    return running.outcome


class _Run:
    """One run: the model opened last, the rows so far, and what every model has done."""

    def __init__(
        self,
        results: ResultsFolder,
        source: JobSource,
        progress: Progress,
        kept: KeptDetail,
        opened: Opened,
        began: float,
    ) -> None:
        self._results, self._source, self._progress = results, source, progress
        self._kept: KeptDetail = kept
        self._opened, self._began = opened, began
        self.works: list[WorkDone] = []
        self.outcome = RunStats()

    def run_group(self, backend: Backend, prepared: Any, group: PrefillGroup, left: int) -> None:
        """Make and record the jobs that are left to this process. The model is opened for the first of them.

        left: jobs of this and all later groups.
        """
        procedure: Procedure | None = None
        with ExitStack() as stack:
            try:
                for place, (planned, samples) in enumerate(jobs_with_samples(group.samples(prepared.tokenizer), group)):
                    job = self._source.take(group, planned)
                    self._progress.elsewhere(len(planned.places) - len(job.places if job else ()), job is None)
                    if job is None:
                        continue
                    session = self._session(backend, prepared, group.model)
                    if procedure is None:
                        procedure = stack.enter_context(session.procedure(group, self._results, self._kept))
                        self._request(group)
                    missing = [sample for sample in samples if sample.id in job.missing]
                    unrecorded = left - place + procedure.num_waiting
                    self._record(procedure.make(job, missing, self._source.share(unrecorded)))
            except StopRequested:
                if procedure is not None:
                    self._record(procedure.finish())
                raise
            if procedure is not None:
                self._record(procedure.finish())

    def _request(self, group: PrefillGroup) -> None:
        """Write the request, and what the rows of a group name: cells and code."""
        self._source.request()
        for cell in group.cells:
            self._results.write_cell(cell.id, cell.description)
            if cell.code.parts is not None:
                self._results.write_code(cell.code.parts)

    def _record(self, results: Iterable[JobResult]) -> None:
        for made in results:
            result = self._source.record(made)
            if result is not None:
                self.outcome.rows += len(result.rows)
                self.outcome.errors += sum(row.error is not None for row in result.rows)
                self._progress.recorded(result.rows)

    def _session(self, backend: Backend, prepared: Any, spec: ModelSpec) -> Session:
        """Return the model, kept until another one is needed. Raises StopRequested if a stop was asked for."""
        if self._opened.session is None or self._opened.spec != spec:
            began = time.perf_counter() if self.works else self._began  # the first with the checks of all models
            self._opened.session = None  # first, so that there is room for the next
            self._opened.spec, self._opened.session = spec, backend.open(prepared, self._results, self._progress)
            if spec.runs_here:
                self._source.loaded(spec.label, time.perf_counter() - began)
            self._source.check()
        work = self._opened.session.work
        if not any(work is other for other in self.works):
            self.works.append(work)
        return self._opened.session
