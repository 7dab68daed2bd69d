"""Launchers without a cluster: what they refuse, what they hand over, whose exit code counts."""

import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvbench.cli.sweep import PartOfSweep
from kvbench.config.validation import validated
from kvbench.records import ResultsFolder
from kvbench.run.cell import Cell
from kvbench.run.launch.launcher import Launcher, PendingSweep
from kvbench.run.launch.local import LocalProcesses, devices, worst
from kvbench.run.launch.slurm import Job, Requeued, Slurm, read_jobs
from kvbench.run.plan import plan
from kvbench.run.shard import Shard, shards_of
from kvbench.support.errors import UserError
from kvbench.work import sweep as work_sweep
from tests.run.survival.faking import SAMPLES, sweep


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> tuple[Cell, ...]:
    return sweep(tmp_path_factory.mktemp("model") / "model")


def test_times_are_those_of_sbatch() -> None:
    """The formats of `man sbatch`, option --time."""
    times = {240: 240, "240": 240, "90:30": 91, "4:00:00": 240, "1-12": 2160, "1-12:30": 2190, "0-0:20:1": 21}
    assert {time: Slurm(time=time).minutes for time in times} == times


def test_other_times_are_refused() -> None:
    for time in ("4h", "", "1:2:3:4", "-5", "1-", "x-1"):
        with pytest.raises(UserError, match=rf"^launcher.time={time}: allowed: minutes \(240\)"):
            Slurm(time=time)


def test_python_may_stand_in_a_container(tmp_path: Path) -> None:
    pytest.importorskip("submitit")
    launcher = Slurm(python="apptainer exec --nv image.sif python", gpus=0, extra={"gres": "gpu:h100:1"})
    script = launcher.script(ResultsFolder(tmp_path), 1)
    assert "#SBATCH --gres=gpu:h100:1\n" in script and "gpus-per-node" not in script
    assert "\nexport PYTHONSAFEPATH=1\n" in script  # a task starts in the folder of the command
    assert " apptainer exec --nv image.sif python -u -m submitit" in script


@pytest.mark.parametrize("shards", [1, 3, 5, 40])
def test_shards_are_the_whole_and_share_nothing(shards: int, cells: tuple[Cell, ...]) -> None:
    whole = plan(cells, set())
    seen: list[tuple[str, int]] = []
    for part in shards_of(whole, shards):
        for group in part.part_of(whole).groups:
            seen += [(cell.id, sample) for job in group.jobs for sample, own in job.missing.items() for cell in own]
    assert sorted(seen) == sorted((cell.id, sample) for cell in cells for sample in range(SAMPLES))
    assert len(shards_of(whole, shards)) <= shards


def test_a_prompt_stays_in_its_shard_whatever_is_done(cells: tuple[Cell, ...]) -> None:
    done = {(cell.id, sample) for cell in cells[1:] for sample in (0, 1, 3, 7)}
    before, after = (Shard(1, 3).part_of(plan(cells, had)) for had in (set(), done))
    keys = [{job.key for group in part.groups for job in group.jobs} for part in (before, after)]
    assert keys[1] <= keys[0] and all(key % 3 == 1 for key in keys[0])


def test_a_shard_that_is_none_is_refused() -> None:
    for index, of in ((-1, 2), (2, 2), (0, 0)):
        with pytest.raises(ValueError, match="allowed: 1/N to N/N"):
            Shard(index, of)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: validated(Launcher, "launcher", {"signals": ["SIGKILL"]}),
            r"launcher.signals=SIGKILL: allowed: .*HUP",
        ),
        (lambda: LocalProcesses(processes=0), "launcher.processes=0: allowed"),
        (lambda: LocalProcesses(processes=10**9), "launcher.processes=1000000000: allowed: 1 to 1024, or null"),
        (lambda: Slurm(shards=10**9), "launcher.shards=1000000000: allowed: 1 to 100000"),
        (lambda: Slurm(memory_gb=float("nan")), "launcher.memory_gb=nan: allowed: 1 to 1000000"),
        (lambda: Slurm(time=1, warning_seconds=60), "must be less than launcher.time=1"),
        (lambda: Slurm(shards=0), "launcher.shards=0: allowed"),
    ],
)
def test_settings_that_cannot_work_are_refused(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_sbatch_is_asked_for_what_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two programs that stand in for sbatch and srun; the script is what submitit wrote."""
    pytest.importorskip("submitit")
    (tmp_path / "bin").mkdir()
    for name, does in (("srun", ""), ("sbatch", f'cp "$1" {tmp_path}/script; echo Submitted batch job 4711')):
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{does}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    launcher = Slurm(
        partition="gpu", account="me", qos="long", gpus=2, cpus=8, memory_gb=1.5, time=30, parallel=3,
        warning_seconds=90, setup=("module load cuda",), extra={"constraint": "h100"},
    )  # fmt: skip
    tasks = [PartOfSweep(("budget=0.2",), False, Shard(index, 2, 0)) for index in range(2)]
    submitted = PendingSweep(("kvbench", "run", "budget=0.2"), ResultsFolder(tmp_path / "out"), lambda shards: tasks)
    assert launcher.launch(submitted) == 0
    script = (tmp_path / "script").read_text()
    for line in (
        "partition=gpu", "account=me", "qos=long", "gpus-per-node=2", "cpus-per-task=8", "mem=1536MB", "time=30",
        "array=0-1%2", "signal=USR2@90", "constraint=h100",
    ):  # fmt: skip
        assert f"#SBATCH --{line}\n" in script
    assert "\nmodule load cuda\n" in script
    (job,) = read_jobs(ResultsFolder(tmp_path / "out"))
    assert (job.number, job.tasks, job.command) == ("4711", 2, ("kvbench", "run", "budget=0.2"))
    assert Job(**{**job.__dict__}) == job
    monkeypatch.setenv("PATH", "/nowhere")
    assert launcher.script(ResultsFolder(tmp_path / "out"), 2) == script, "a dry run prints what sbatch gets"


@pytest.mark.parametrize("submits", [True, False])
def test_a_launcher_declares_that_it_submits(submits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plugin's launcher under any name: a command that submitted has not ended, and wrote down what was asked for."""

    class Queue(Launcher):
        def launch(self, work: PendingSweep) -> int:
            return 0

    monkeypatch.setattr(Queue, "submits", submits)
    monkeypatch.setattr(work_sweep, "_announce", lambda sweep, tell: None)
    folder = ResultsFolder(tmp_path / "out")
    asked = {"quiet": True, "plan": SimpleNamespace(rows_to_do=3), "arguments": ("budget=0.2",), "samples": {"a": 3}}
    sweep: Any = SimpleNamespace(launcher=Queue(name="queue"), results=folder, **asked)
    assert work_sweep.make(sweep, ("kvbench", "run"), lambda part: lambda: 0) == (0, not submits)
    assert len([*folder.path.glob("sweeps/*.json")]) == submits


def test_a_task_travels_and_ends_with_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    task = PartOfSweep(("policy=h2o_obcache",), True, Shard(1, 2, 0))
    assert pickle.loads(pickle.dumps(task)) == task
    monkeypatch.setattr(PartOfSweep, "__call__", lambda self: 4)
    with pytest.raises(SystemExit) as ended:
        Requeued()(task)
    assert ended.value.code == 4
    monkeypatch.setattr(PartOfSweep, "__call__", lambda self: 0)
    assert Requeued()(task) == 0


def test_the_worst_code_counts() -> None:
    codes = {(0, 0): 0, (0, 4): 4, (4, 75): 75, (75, 1): 1, (0, -9): 1, (130, 75): 75}
    assert {own: worst(own) for own in codes} == codes


def test_gpus_are_those_that_are_visible() -> None:
    assert devices({"CUDA_VISIBLE_DEVICES": "2,GPU-5f"}) == ["2", "GPU-5f"]
    assert devices({"CUDA_VISIBLE_DEVICES": ""}) == devices({"CUDA_VISIBLE_DEVICES": "-1"}) == []
