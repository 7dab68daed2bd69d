"""Two hundred deaths at random touches of the disk: whole units are left, in the end the rows of an undisturbed run.

A hundred in one process, fifty of processes of launcher=local, fifty of tasks of launcher=slurm that are requeued;
without the slow tests 20, 10 and 10. The launchers' own code runs, with forks in place of `python -m` and of SLURM,
which tests/slurm has.
"""

import os
import random
import signal
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kvbench.records import ResultsFolder, read_rows
from kvbench.run.cell import Cell
from kvbench.run.launch.launcher import PendingSweep
from kvbench.run.launch.local import LocalProcesses
from kvbench.run.launch.slurm import Requeued
from kvbench.run.shard import Shard
from tests.run.survival.faking import FakeEngine, die_at, fork, go, join, outcomes, recorded_twice

KILLS, FOLDERS = 100, 10


def killed(folder: Path, cells: tuple[Cell, ...], seed: int) -> int:
    """Start a run that is killed somewhere, early or late; its exit code."""
    return join(fork(partial(doomed, seed, lambda: go(folder, cells))))


def doomed(seed: int, work: Callable[[], object]) -> None:
    """Work until a touch of the disk that the seed chooses, if it takes that long."""
    with pytest.MonkeyPatch.context() as patch:
        die_at(int(10 ** random.Random(seed).uniform(0, 2.7)), seed, patch)
        work()


@pytest.mark.parametrize(
    "number", [pytest.param(number, marks=() if number < 2 else pytest.mark.slow) for number in range(FOLDERS)]
)
def test_kills_cost_no_row_and_double_none(
    number: int, cells: tuple[Cell, ...], engine: FakeEngine, peace: Mapping[tuple[str, int], Any], tmp_path: Path
) -> None:
    kills, seed = 0, number * 1000
    folder = tmp_path / "0"
    while kills < KILLS // FOLDERS:
        seed += 1
        code = killed(folder, cells, seed)
        assert code in (0, -signal.SIGKILL)
        kills += code != 0
        rows = outcomes(folder)
        assert rows.items() <= peace.items() and not recorded_twice(folder)
        if code == 0:  # it had less left to do than it took to be killed: on with another folder
            assert rows == peace
            folder = tmp_path / str(seed)
    go(folder, cells)
    assert outcomes(folder) == peace and not recorded_twice(folder)
    warned: list[str] = []
    read_rows(folder, warned.append)
    assert all("torn last line dropped" in text for text in warned)


many = pytest.mark.parametrize("kills", [10, pytest.param(50, marks=pytest.mark.slow)])


class Child:
    """A process of launcher=local, forked: works on the folder of its command, and is killed on the way."""

    cells: tuple[Cell, ...] = ()
    seed = kills = 0

    def __init__(self, command: list[str], **_: object) -> None:
        Child.seed += 1
        read, write = os.pipe()
        self.stderr = os.fdopen(read)
        self.pid = fork(partial(doomed, Child.seed, lambda: go(Path(command[-1]), Child.cells)))
        os.close(write)

    def wait(self) -> int:
        code = join(self.pid)
        Child.kills += code == -signal.SIGKILL
        return code


@many
def test_kills_of_local_processes_cost_no_row(
    kills: int,
    cells: tuple[Cell, ...],
    engine: FakeEngine,
    peace: Mapping[tuple[str, int], Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the launcher returns says whether the calling process makes the rest."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr("kvbench.run.launch.local.subprocess.Popen", Child)
    Child.cells, Child.kills = cells, 0
    while Child.kills < kills:
        folder, before = tmp_path / str(Child.seed), Child.kills
        code = LocalProcesses(processes=2).launch(
            PendingSweep((str(folder),), ResultsFolder(folder), lambda shards: [])
        )
        assert code == (0 if Child.kills == before else None)
        rows = outcomes(folder)
        assert rows.items() <= peace.items() and not recorded_twice(folder)
        if code is None:
            go(folder, cells)
        assert outcomes(folder) == peace and not recorded_twice(folder)


@many
def test_kills_of_requeued_tasks_cost_no_row(
    kills: int, cells: tuple[Cell, ...], engine: FakeEngine, peace: Mapping[tuple[str, int], Any], tmp_path: Path
) -> None:
    """Two shards at a time; one that is killed starts again, as on a node that failed."""
    seed = done = 0
    while done < kills:
        folder = tmp_path / str(seed)
        left = [Shard(index, 2) for index in range(2)]
        while left:
            seed += 2
            started = [
                fork(partial(doomed, seed + part.index, partial(Requeued(), partial(_task, folder, cells, part))))
                for part in left
            ]
            codes = [join(child) for child in started]
            assert set(codes) <= {0, -signal.SIGKILL}
            done += codes.count(-signal.SIGKILL)
            left = [part for part, code in zip(left, codes, strict=True) if code]
            assert outcomes(folder).items() <= peace.items() and not recorded_twice(folder)
        assert outcomes(folder) == peace


def _task(folder: Path, cells: tuple[Cell, ...], part: Shard) -> int:
    go(folder, cells, part=part)
    return 0
