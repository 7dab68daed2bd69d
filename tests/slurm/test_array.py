"""A sharded sweep on a real SLURM: a task is killed, others meet their time limit; the rows are those of one process.

Needs a cluster, so it runs where KVBENCH_TEST_SLURM is set: `make test-slurm` starts one on this machine.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from kvbench.cli.main import main
from kvbench.records import Process, read_processes
from tests.run.survival.faking import outcomes, recorded_twice

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif("KVBENCH_TEST_SLURM" not in os.environ, reason="needs a SLURM: make test-slurm"),
]

CELLS = ("policy=full,snapkv,h2o_obcache", "budget=0.2", "task.context_length=512")
JOBS = {
    "launcher": "slurm",
    "launcher.gpus": "0",
    "launcher.shards": "2",
    "launcher.time": "2",
    "launcher.warning_seconds": "20",
}
SLOWED = """
import os
import time
from dataclasses import dataclass

from kvbench.eviction.scores.attn import Attention


@dataclass(frozen=True)
class Slowed(Attention):
    name: str = "slowed"

    def __call__(self, layer, window, reduce):
        if "SLURM_JOB_ID" in os.environ:
            time.sleep(0.75)
        return super().__call__(layer, window, reduce)
"""
"""Attention that sleeps in the tasks of a job, so that their time does not depend on how fast the machine is."""
SAMPLES = 40
"""Two policies, five layers: tasks sleep for 300 seconds in all. Three of them meet the limit of two minutes, of which
SLURM warns them after 70 to 100 seconds."""
PATIENCE_SECONDS = 1200
PAUSE_SECONDS = 1
"""Between two looks."""


def kvbench(*arguments: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    done = subprocess.run([sys.executable, "-m", "kvbench", *arguments], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done


def jobs(**changed: str) -> list[str]:
    """Write the settings of `JOBS`, with other values for settings of the launcher."""
    return [f"{name}={value}" for name, value in (JOBS | {f"launcher.{key}": changed[key] for key in changed}).items()]


def status(folder: Path) -> dict[str, Any]:
    """What `kvbench status` says, asked in this process: one of its own takes seconds from the tasks."""
    with redirect_stdout(StringIO()) as printed:
        code = main(["status", "--results", str(folder), "--json"])
    assert code in (0, 75), printed.getvalue()
    return json.loads(printed.getvalue())


def until(what: Callable[[], Any], folder: Path) -> Any:
    """What is true in the end. Fails with the logs of the jobs when patience does."""
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end:
        if value := what():
            return value
        time.sleep(PAUSE_SECONDS)
    logs = "\n".join(f"== {path.name}\n{path.read_text()[-2000:]}" for path in sorted((folder / "logs").glob("*log*")))
    pytest.fail(f"after {PATIENCE_SECONDS} s: {status(folder)}\n{logs}")


def submit(arguments: tuple[str, ...], folder: Path, **changed: str) -> str:
    beats = "results.lease_seconds=24"  # every two seconds, so that what a process has made is soon known
    message = kvbench("run", *jobs(**changed), *arguments, beats, f"results.dir={folder}", cwd=folder.parent).stderr
    submitted = re.search(r"submitted job (\d+) with 2 tasks", message)
    assert submitted, message
    return submitted[1]


def working(folder: Path, job: str) -> list[Process]:
    """Processes of a job that have made rows and are neither stopped nor about to be."""
    return [
        process for process in read_processes(folder) if process.rows and process.job == job and not process.has_ended
    ]


def restarts(job: str) -> int:
    """How often SLURM has started the tasks of a job again."""
    printed = subprocess.run(["scontrol", "show", "job", job], capture_output=True, text=True, check=True).stdout
    return sum(map(int, re.findall(r"Restarts=(\d+)", printed)))


def test_a_sweep_survives_a_kill_and_time_limits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    alone, folder, score = tmp_path / "alone", tmp_path / "array", tmp_path / "slowed.py"
    score.write_text(SLOWED)
    arguments = (*CELLS, f"score={score}", f"task.samples={SAMPLES}")
    kvbench("run", *arguments, f"results.dir={alone}", cwd=tmp_path)
    expected = outcomes(alone)
    assert len(expected) == 3 * SAMPLES

    first = submit(arguments, folder)
    started = time.monotonic()
    at_work = until(lambda: working(folder, f"{first}_0"), folder)
    os.kill(at_work[0].pid, signal.SIGKILL)
    until(lambda: status(folder)["jobs"][first].get("failed") == 1, folder)
    assert status(folder)["processes"]["killed"] == 1
    second = submit(arguments, folder)  # one of its tasks shares a shard with the task that was not killed
    until(lambda: not status(folder)["left"], folder)
    seconds = time.monotonic() - started
    until(
        lambda: not {"running", "completing"} & {state for job in status(folder)["jobs"].values() for state in job},
        folder,
    )

    assert outcomes(folder) == expected and not recorded_twice(folder)
    assert not list((folder / "leases").iterdir())
    ended = [process.ended or "killed" for process in read_processes(folder)]
    requeued = restarts(first) + restarts(second)
    assert ended.count("killed") == 1 and requeued >= 1
    assert any("SIGUSR2" in how for how in ended)
    with capsys.disabled():
        print(
            f"\nSLURM: {len(expected)} rows in {seconds:.0f} s by jobs {first} and {second}, {len(ended)} processes: "
            f"1 killed, {requeued} requeued at the time limit; rows equal to those of one process, none twice"
        )


def test_environment_container_and_gres_reach_the_tasks(tmp_path: Path) -> None:
    """A program that stands in for a container's, a generic resource, HF_HOME of the submitting shell, H:MM:SS."""
    wrapper, folder = tmp_path / "inside", tmp_path / "contained"
    wrapper.write_text(f'#!/bin/bash\nenv > {tmp_path}/environment\nexec "$@"\n')
    wrapper.chmod(0o755)
    kvbench(
        "run", *CELLS, "task.samples=2", *jobs(shards="1", time="0:10:00"),
        f'launcher.python="{wrapper} {sys.executable}"', "launcher.extra={gres:bench:1}",
        'launcher.setup=["export HF_HUB_OFFLINE=1"]', f"results.dir={folder}", cwd=tmp_path,
    )  # fmt: skip
    until(lambda: not status(folder)["left"], folder)
    environment = (tmp_path / "environment").read_text().splitlines()
    assert f"HF_HOME={os.environ['HF_HOME']}" in environment and "HF_HUB_OFFLINE=1" in environment
    (job,) = status(folder)["jobs"]
    shown = subprocess.run(["scontrol", "show", "job", job], capture_output=True, text=True, check=True).stdout
    assert "TimeLimit=00:10:00" in shown and re.search(r"TresPerNode=gres[:/]bench:1", shown)


SLOW = """
import time
from dataclasses import dataclass
from typing import ClassVar

from kvbench.eviction.scores.score import Score, ScoreInputs


@dataclass(frozen=True)
class Slow(Score):
    name: str = "slow"
    inputs: ClassVar[ScoreInputs] = ScoreInputs(window=False)
    group: ClassVar = "mean"

    def __call__(self, layer, window, reduce):
        time.sleep(600)
        return layer.positions.view(layer.cache_heads, -1).float()
"""


def test_a_sample_longer_than_the_warning_ends_its_task(tmp_path: Path) -> None:
    """SLURM kills it at the limit, so nothing requeues it; what it worked on is left for the same command."""
    folder, score = tmp_path / "late", tmp_path / "slow.py"
    score.write_text(SLOW)
    words = ("policy=plain", f"score={score}", "task.samples=1", "reference=none", f"results.dir={folder}")
    kvbench("run", *words, *jobs(time="0:02:00", shards="1", warning_seconds="1"), cwd=tmp_path)
    (number,) = status(folder)["jobs"]
    until(lambda: "timeout" in status(folder)["jobs"][number], folder)
    now = status(folder)
    assert now["jobs"] == {number: {"timeout": 1}} and now["left"] == 1 and restarts(number) == 0


def test_cancel_ends_jobs(tmp_path: Path) -> None:
    folder = tmp_path / "long"
    job = submit((*CELLS, "task.samples=5000"), folder, time="10")
    until(lambda: status(folder)["done"], folder)
    message = kvbench("cancel", "--results", str(folder), cwd=tmp_path).stderr
    assert f"cancelled job {job}" in message
    until(lambda: set(status(folder)["jobs"][job]) == {"cancelled"}, folder)
    assert not recorded_twice(folder)
    assert "no job or process works on this folder" in kvbench("cancel", "--results", str(folder), cwd=tmp_path).stderr


def test_an_item_of_a_paper_is_submitted_and_then_rendered(tmp_path: Path) -> None:
    folder = tmp_path / "item"
    settings = ("model=reference", "task.haystack=noise", "task.context_length=384", "task.samples=4", "budget=80")
    more = ("policy=h2o_obcache,snapkv", "score=attn", "task.max_new_tokens=4")
    arguments = ("paper", "obcache/table1", *settings, *more, *jobs())
    first = kvbench(*arguments, f"results.dir={folder}", cwd=tmp_path)
    assert re.search(r"submitted job \d+ with 2 tasks", first.stderr) and "ours" not in first.stdout
    until(lambda: status(folder)["done"] == 8 and not status(folder)["left"], folder)
    page = kvbench(*arguments, f"results.dir={folder}", cwd=tmp_path)
    assert "n = 4 a number" in page.stdout and "submitted" not in page.stderr
