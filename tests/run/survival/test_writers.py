"""Several processes on one folder: every row is made, and made once; what a dead or sleeping one held is taken over."""

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kvbench.records import ResultsFolder, read_processes
from kvbench.run import local, runner
from kvbench.run.cell import Cell
from kvbench.run.job_queue import JobQueue
from kvbench.run.plan import Plan, PrefillGroup, PrefillJob, plan
from tests.run.survival.faking import (
    ROWS,
    SOON,
    FakeEngine,
    Silent,
    fork,
    go,
    join,
    outcomes,
    recorded_twice,
)

Rows = Mapping[tuple[str, int], Any]


def test_writers_share_the_work(cells: tuple[Cell, ...], engine: FakeEngine, peace: Rows, tmp_path: Path) -> None:
    engine.seconds = 0.01
    children = [fork(lambda: go(tmp_path, cells)) for _ in range(5)]
    assert [join(child) for child in children] == [0] * 5
    assert outcomes(tmp_path) == peace and not recorded_twice(tmp_path)
    processes = read_processes(tmp_path)
    assert sum(process.rows for process in processes) == ROWS
    assert sum(process.rows > 0 for process in processes) > 1
    assert not list((tmp_path / "leases").iterdir())


def test_a_plan_stays_as_it_is_while_others_record_nothing(cells: tuple[Cell, ...], tmp_path: Path) -> None:
    todo, folder = plan(cells, set()), ResultsFolder(tmp_path)
    with JobQueue(folder) as queue:
        assert queue.left(todo) is todo


def test_other_cells_of_the_same_prompts_are_other_work(
    cells: tuple[Cell, ...], engine: FakeEngine, peace: Rows, tmp_path: Path
) -> None:
    """Commands that overlap share what they have in common."""
    engine.seconds = 0.005
    children = [fork(lambda part=part: go(tmp_path, part)) for part in (cells[:4], cells[2:], cells[1:5])]
    assert [join(child) for child in children] == [0] * 3
    assert outcomes(tmp_path) == peace and not recorded_twice(tmp_path)


def test_what_the_dead_held_is_taken_at_once_here(
    cells: tuple[Cell, ...], engine: FakeEngine, peace: Rows, tmp_path: Path
) -> None:
    """Nobody waits for the heartbeat of a process that the system says is gone."""
    engine.during = lambda unit: os.kill(os.getpid(), signal.SIGKILL) if unit.key == 3 else None
    assert join(fork(lambda: go(tmp_path, cells, lease_seconds=600.0))) == -signal.SIGKILL
    (lease,) = (tmp_path / "leases").iterdir()
    assert lease.name.endswith("-3.0")
    engine.during = lambda unit: None
    start = time.monotonic()
    go(tmp_path, cells, lease_seconds=600.0)
    assert time.monotonic() - start < 10
    assert outcomes(tmp_path) == peace and not recorded_twice(tmp_path)
    assert not list((tmp_path / "leases").iterdir())


def test_a_process_that_slept_finds_its_unit_taken(
    cells: tuple[Cell, ...], engine: FakeEngine, peace: Rows, tmp_path: Path
) -> None:
    """Stopped in the middle of a unit for longer than a lease lasts, it throws away what it has made."""
    asleep = tmp_path / "asleep"

    def during(unit: object) -> None:
        if not asleep.exists():
            asleep.touch()
            os.kill(os.getpid(), signal.SIGSTOP)

    folder = tmp_path / "out"
    engine.during = during
    child = fork(lambda: go(folder, cells, lease_seconds=SOON))
    os.waitpid(child, os.WUNTRACED)
    start = time.monotonic()
    go(folder, cells, lease_seconds=SOON)
    assert time.monotonic() - start >= SOON and outcomes(folder) == peace
    os.kill(child, signal.SIGCONT)
    assert join(child) == 0
    assert outcomes(folder) == peace and not recorded_twice(folder)


def test_killed_writers_among_living_ones(
    cells: tuple[Cell, ...], engine: FakeEngine, peace: Rows, tmp_path: Path
) -> None:
    """The first dies before the living begin; the others wherever their first unit finds them."""
    engine.seconds = 0.02
    engine.during = lambda unit: os.kill(os.getpid(), signal.SIGKILL)
    deadly = [fork(lambda: go(tmp_path, cells)) for _ in range(3)]
    assert join(deadly[0]) == -signal.SIGKILL
    engine.during = lambda unit: None
    living = [fork(lambda: go(tmp_path, cells)) for _ in range(2)]
    assert {join(child) for child in deadly[1:]} <= {0, -signal.SIGKILL}
    assert [join(child) for child in living] == [0, 0]
    assert outcomes(tmp_path) == peace and not recorded_twice(tmp_path)


class Idle(JobQueue):
    """A process to which others leave nothing."""

    def take(self, group: PrefillGroup, job: PrefillJob) -> PrefillJob | None:
        return None

    def wait(self, plan: Plan) -> Plan:
        return plan.with_jobs(lambda group: ())


def test_no_model_is_opened_where_others_make_all_rows(
    cells: tuple[Cell, ...], engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "load", lambda *_: pytest.fail("a model was opened"))
    results = ResultsFolder(tmp_path)
    assert runner.run(plan(cells, set()), results, Idle(results), Silent()).rows == 0
