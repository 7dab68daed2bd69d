"""Runs without a model: the real plan, job queue, leases and recorder around an engine that makes rows up.

Children are forked, so that a hundred of them cost less than one that imports torch.
"""

import os
import random
import signal
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from kvbench.eviction.budget import parse_budget
from kvbench.eviction.policy import Policy
from kvbench.eviction.schedule import Schedule
from kvbench.eviction.scores.attn import Attention
from kvbench.models.loading.spec import ModelSpec
from kvbench.records import Curve, KeptSets, ResultsFolder, Row, file_sizes, read_rows
from kvbench.run import answers, local, runner
from kvbench.run.cell import Cell
from kvbench.run.eviction_method import EvictionMethod
from kvbench.run.job_queue import JobQueue, RunContext
from kvbench.run.plan import PrefillJob, plan
from kvbench.run.rows import JobResult, unmeasured_row
from kvbench.run.shard import Shard
from kvbench.tasks.task import Sample
from tests.questions import Questions
from tests.run.already import recorded_samples

SAMPLES = 12
BUDGETS = ("0.1", "0.3", "0.5")
ROWS = SAMPLES * len(BUDGETS) * 2
SECONDS = 10.0
"""After which a silent process has stopped: longer than a busy machine keeps one that runs from its heartbeats."""
SOON = 0.4
"""The same in tests that wait for it."""


class Silent:
    """Progress that nobody looks at."""

    def loading(self, model: str) -> None:
        pass

    def noted(self, text: str) -> None:
        pass

    def recorded(self, rows: list[Row]) -> None:
        pass

    def elsewhere(self, rows: int, whole_job: bool = True) -> None:
        pass


def sweep(folder: Path) -> tuple[Cell, ...]:
    """Six cells in two prefill groups; in one of them questions share contexts."""
    folder.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (folder / name).write_text(name)
    task = Questions(samples=SAMPLES, contexts=5)
    method = EvictionMethod(Policy("h2o_obcache"), Attention(), parse_budget("0.1"), "h2o_obcache", None)
    cell = Cell(ModelSpec("hf", str(folder)), task, method, Schedule(), 1)
    schedules = (Schedule("prompt"), Schedule("context"))
    return tuple(
        replace(cell.with_method(budget=parse_budget(text)), schedule=when) for when in schedules for text in BUDGETS
    )


@dataclass
class FakeEngine:
    """Makes a job in `seconds`. `fails` are samples that raise; `during` is called with every job."""

    seconds: float = 0.0
    fails: tuple[int, ...] = ()
    during: Callable[[PrefillJob], object] = lambda job: None

    def load(self, model_info: object, begun: object = None) -> Any:
        return SimpleNamespace(
            engine=SimpleNamespace(max_batch=1, counters=SimpleNamespace(prefills=0, tokens_prefilled=0, oom_splits=0)),
            device={"name": "none"},
            notes=(),
        )

    def run_prefill_job(
        self, model: object, job: PrefillJob, samples: Sequence[Sample], where: str, detail: str
    ) -> JobResult:
        self.during(job)
        time.sleep(self.seconds)
        result = JobResult(job, where)
        for sample in sorted(samples, key=lambda sample: sample.id):
            if sample.id in self.fails:
                raise ZeroDivisionError("nobody foresaw this")
            for cell in job.missing[sample.id]:
                row = unmeasured_row(cell, sample, None, where, error="")
                prediction = f"{cell.id} says {sample.question}" * 20
                result.rows.append(replace(row, error=None, prediction=prediction, value=sample.id / SAMPLES))
                result.kept.append(KeptSets(cell.id, sample.id, 9, (0,), ((3, 4),), None))
                result.curves.append(Curve.over(cell.id, sample.id, "nll", [1.0, 2.0], 2))
        return result


def put_in(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let runs of this process, and of those that it forks, use the fake engine."""
    model_info = SimpleNamespace(
        tokenizer=SimpleNamespace(chat_template=None), spec=SimpleNamespace(label="fake"), max_length=10**6
    )
    monkeypatch.setattr(local, "model_info", lambda spec: model_info)
    monkeypatch.setattr(local, "check_group", lambda *_: None)
    monkeypatch.setattr(local, "describe_model", lambda spec: {"sha256": "0"})
    monkeypatch.setattr(local, "check_model_unchanged", lambda *_: None)
    monkeypatch.setattr(local, "load", engine.load)
    monkeypatch.setattr(answers, "run_prefill_job", engine.run_prefill_job)
    monkeypatch.setattr(local, "environment", lambda device: {"device": "none"})


def go(
    folder: Path, cells: Sequence[Cell], /, retry: bool = False, part: Shard | None = None, **run_context: Any
) -> runner.RunStats:
    """What `kvbench run` does between reading the command and printing the table."""
    since = file_sizes(folder)
    todo = plan(cells, recorded_samples(folder, retry))
    todo = todo if part is None else part.part_of(todo)
    results = ResultsFolder(folder)
    claims = JobQueue(results, RunContext(**{"lease_seconds": SECONDS, "since": since, **run_context}))
    return runner.run(todo, results, claims, Silent(), "lengths")


def fork(what: Callable[[], object]) -> int:
    """Do something in a child; returns its process id. An exception of the child is printed and ends it with 1."""
    child = os.fork()
    if child:
        return child
    try:
        what()
        leave(0)
    except BaseException:
        traceback.print_exc()
        leave(1)


def leave(code: int) -> NoReturn:
    os._exit(code)


def join(child: int) -> int:
    """The exit code of a child, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


WRITES = ("open", "write", "fsync", "replace", "unlink", "close")
"""What the disk sees of a run."""


def die_at(number: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process be killed at its `number`th touch of the disk; a write may then go down in part."""
    count = 0

    def deadly(name: str) -> Callable[..., Any]:
        usual = getattr(os, name)

        def touched(*arguments: Any, **named: Any) -> Any:
            nonlocal count
            count += 1
            if count == number:
                if name == "write":
                    usual(arguments[0], arguments[1][: random.Random(seed).randrange(len(arguments[1]) + 1)])
                os.kill(os.getpid(), signal.SIGKILL)
            return usual(*arguments, **named)

        return touched

    for name in WRITES:
        monkeypatch.setattr(os, name, deadly(name))


def outcomes(folder: Path) -> dict[tuple[str, int], Mapping[str, Any]]:
    return {(row.cell, row.sample): row.outcome() for row in read_rows(folder, lambda _: None)}


def recorded_twice(folder: Path) -> list[bytes]:
    """Whole lines of rows that are in the folder more than once, by whatever file."""
    lines = [line for path in (folder / "rows").glob("*.jsonl") for line in path.read_bytes().split(b"\n")[:-1]]
    return sorted({line for line in lines if lines.count(line) > 1})
