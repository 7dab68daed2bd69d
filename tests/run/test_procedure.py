"""The one runner with a backend, a procedure and a source of jobs of others: it knows nothing but what they say."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from kvbench.models.loading.spec import ModelSpec
from kvbench.records import ResultsFolder, Row
from kvbench.run.plan import Plan, PrefillGroup, PrefillJob, plan
from kvbench.run.procedure import Samples, procedure_of
from kvbench.run.progress import RunStats
from kvbench.run.rows import JobResult, error_row
from kvbench.run.runner import Opened, run
from tests.run.survival.faking import ROWS, SAMPLES, sweep


class Pairs:
    """Makes jobs two at a time."""

    def __init__(self) -> None:
        self._waiting: list[tuple[PrefillJob, Samples]] = []

    @classmethod
    def when(cls, group: PrefillGroup) -> str:
        return "never evicted"

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def make(self, job: PrefillJob, samples: Samples, most_waiting: int) -> Iterator[JobResult]:
        self._waiting.append((job, samples))
        if len(self._waiting) >= min(2, most_waiting):
            yield from self.finish()

    def finish(self) -> Iterator[JobResult]:
        waiting, self._waiting = self._waiting, []
        for job, samples in waiting:
            result = JobResult(job, "here")
            for sample in samples:
                rows = (error_row(cell, sample, "", "here") for cell in job.missing[sample.id])
                result.rows += [replace(row, error=None, value=1.0) for row in rows]
            yield result


class Parrots:
    """A backend that loads nothing. opened: models, in order."""

    opened: list[str] = []  # noqa: RUF012

    def prepare(self, spec: ModelSpec) -> Any:
        return SimpleNamespace(tokenizer=SimpleNamespace(chat_template=None), spec=spec)

    def check(self, prepared: Any, group: PrefillGroup) -> None:
        pass

    def open(self, prepared: Any, results: ResultsFolder, progress: object) -> Any:
        self.opened.append(prepared.spec.name)

        @contextmanager
        def procedure(*_: object) -> Iterator[Pairs]:
            yield Pairs()

        return SimpleNamespace(work=RunStats(prefills=5), procedure=procedure)

    def procedure_of(self, task: object) -> type[Pairs]:
        return Pairs


@dataclass(frozen=True)
class Parrot(ModelSpec):
    backend = f"{__name__}:Parrots"
    runs_here = False


@dataclass
class Alone:
    """Takes everything but the samples of another process, and keeps rows in memory."""

    theirs: tuple[int, ...] = ()
    rows: list[Row] = field(default_factory=list)

    def take(self, group: PrefillGroup, job: PrefillJob) -> PrefillJob | None:
        return None if set(job.missing) <= set(self.theirs) else job

    def record(self, result: JobResult) -> JobResult:
        self.rows += result.rows
        return result

    def share(self, left: int) -> int:
        return left

    def left(self, plan: Plan) -> Plan:
        recorded = {(row.cell, row.sample) for row in self.rows}
        return plan.with_jobs(lambda group: [job for job in group.jobs if job.without(recorded).missing])

    def wait(self, plan: Plan) -> Plan:
        return plan.with_jobs(lambda group: ())

    def request(self) -> None:
        pass

    def loaded(self, model: str, seconds: float) -> None:
        raise AssertionError("nothing was loaded here")

    def check(self) -> None:
        pass

    def __enter__(self) -> "Alone":
        return self

    def __exit__(self, *_: object) -> None:
        pass


def test_the_runner_asks_its_backend_and_its_source_of_jobs(tmp_path: Path) -> None:
    cells = [replace(cell, model=Parrot(**asdict(cell.model))) for cell in sweep(tmp_path / "model")]
    planned, opened, jobs = plan(cells, set()), Opened(), Alone()
    assert {procedure_of(group).when(group) for group in planned.groups} == {"never evicted"}
    outcome = run(planned, ResultsFolder(tmp_path / "out"), jobs, opened=opened)
    assert (outcome.rows, outcome.errors, outcome.prefills) == (ROWS, 0, 5) and Parrots.opened == ["hf"]
    assert {(row.cell, row.sample) for row in jobs.rows} == {(c.id, s) for c in cells for s in range(SAMPLES)}
    others = Alone(theirs=tuple(range(SAMPLES)))
    assert run(planned, ResultsFolder(tmp_path / "out"), others, opened=opened).rows == 0
    assert Parrots.opened == ["hf"], "nothing was ours"
