"""kvbench status, cancel, --shard and launcher=local: what a folder says of those who work on it."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvbench.cli.main import main
from kvbench.records import Heartbeat, Process, ResultsFolder, read_processes
from kvbench.records.processes import born
from kvbench.records.row import with_checksum
from kvbench.run.answers import Answers
from kvbench.run.job_queue import JobQueue
from kvbench.run.launch.slurm import Job
from kvbench.run.rows import JobResult
from tests.cli.conftest import Command, outcomes
from tests.forked import Forked

CELLS = ("policy=full,snapkv", "budget=0.2")


def write_process(folder: Path, **changes: object) -> Process:
    """The file of a process, as it may be found."""
    heart = Heartbeat(ResultsFolder(folder), 100.0, 180.0)
    name = heart.start()
    heart._ended.set()
    assert heart.process is not None
    changed = replace(heart.process, **changes)  # type: ignore[arg-type]
    (folder / "processes" / f"{name}.json").write_text(with_checksum(json.dumps(asdict(changed))))
    return changed


def test_a_finished_sweep_and_one_that_grew(kvbench: Command, tiny: tuple[str, ...]) -> None:
    """0 when all is there, 75 while rows are missing, 4 when some have failed."""
    assert kvbench("run", *tiny, *CELLS).code == 0
    done = kvbench("status", "--results", "out")
    assert done.code == 0 and "out: 6 of 6 rows done (100 %), 0 left" in done.out
    assert "processes: 1 ended; 0 prompts being made" in done.out and "device hours: " in done.out
    ResultsFolder("out").write_sweep(("more",), {next(Path("out/cells").iterdir()).stem: 10})
    more = kvbench("status", "--results=out", "--json")
    status = json.loads(more.out)
    assert more.code == 75 and (status["rows"], status["done"], status["left"]) == (13, 6, 7)
    assert status["eta_seconds"] is None and status["rows_per_second"] is None
    assert kvbench("run", *tiny, "policy=h2o_obcache", "budget=0.01", "results.dir=bad").code == 4
    failed = kvbench("status", "--results", "bad")
    assert failed.code == 4 and "3 of 3 rows done (100 %), 3 of them failed, 0 left" in failed.out


EARLY, LATE = "2026-01-01T00:00:00.000+00:00", "2026-01-01T01:00:00.000+00:00"


def asked(folder: Path) -> None:
    """Make a folder that is asked for 100 rows."""
    (folder / "rows").mkdir(parents=True)
    ResultsFolder(folder).write_sweep((), {"ab": 100})


def test_rows_of_a_device_hour_are_those_of_all_processes_that_share_it(kvbench: Command, tmp_path: Path) -> None:
    """Two processes of a GPU that two share, for an hour each: one device hour."""
    asked(tmp_path / "out")
    for rows in (30, 50):
        write_process(tmp_path / "out", rows=rows, devices=0.5, started_utc=EARLY, beat_utc=LATE)
    status = json.loads(kvbench("status", "--results", "out", "--json").out)
    assert (status["device_hours"], status["rows_per_device_hour"]) == (1, 80)
    assert "device hours: 1, 80 rows in each" in kvbench("status", "--results", "out").out


def test_processes_are_told_apart_by_what_they_do(kvbench: Command, tmp_path: Path) -> None:
    """Here the system is asked; elsewhere the heartbeat; squeue knows better where it answers."""
    folder = tmp_path / "out"
    asked(folder)
    for more in ({"rows": 30, "devices": 2}, {"born": "1"}, {"machine": "another"}):
        write_process(folder, started_utc=EARLY, beat_utc=LATE, **more)
    write_process(folder, machine="another", ended="finished", started_utc=EARLY, beat_utc=LATE)
    status = json.loads(kvbench("status", "--results", "out", "--json").out)
    assert status["processes"] == {"running": 1, "killed": 1, "silent": 1, "ended": 1}
    assert status["device_hours"] == pytest.approx(5) and status["rows_per_second"] == pytest.approx(30 / 3600)
    assert status["eta_seconds"] == pytest.approx(100 * 3600 / 30)
    assert status["rows_per_device_hour"] == pytest.approx(30 / 5)
    assert "at 30 rows an hour" in kvbench("status", "--results", "out").out


def squeue(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Stand-ins for squeue and scancel; what scancel is told is kept."""
    bin_ = folder / "bin"
    bin_.mkdir()
    (bin_ / "squeue").write_text(f"#!/bin/sh\ncat <<END\n{text}\nEND\n")
    (bin_ / "scancel").write_text(f"#!/bin/sh\necho $@ > {folder}/cancelled\n")
    for path in bin_.iterdir():
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_}:{os.environ['PATH']}")


def test_a_folder_whose_first_process_loads_a_model_is_not_done(kvbench: Command, tmp_path: Path) -> None:
    """A process asks for its rows when its model has answered; until then nothing is known of what is left."""
    heart = Heartbeat(ResultsFolder("out"), 100.0, 180.0)
    heart.start()
    starting = kvbench("status", "--results", "out")
    assert heart.process is not None
    since = f"out: no rows yet, a process has been starting since {heart.process.started_utc}; "
    assert starting.code == 75 and since in starting.out
    assert json.loads(kvbench("status", "--results", "out", "--json").out)["eta_seconds"] is None
    heart.end("finished")
    assert kvbench("status", "--results", "out").code == 0


def test_jobs_are_what_squeue_says(kvbench: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    others = "slurm_load: a warning\n\n1|2|3|RUNNING|5\n"
    squeue(tmp_path, monkeypatch, f"{others}13|12|0|RUNNING\n12|12|1|PENDING\n9|9|N/A|COMPLETED\n99|99|N/A|RUNNING")
    script = tmp_path / "bin" / "squeue"
    script.write_text(script.read_text() + "printf '\\377\\n'\n")
    folder = ResultsFolder("out")
    for number, tasks in (("9", 1), ("12", 2)):
        job = Job(number, tasks, "2026-01-01T00:00:00+00:00", ())
        (folder.path / "jobs").mkdir(parents=True, exist_ok=True)
        (folder.path / "jobs" / f"{number}.json").write_text(json.dumps(asdict(job)))
    write_process(Path("out"), machine="another", job="12_0", beat_utc="2026-01-01T00:00:00.000+00:00")
    finished = kvbench("status", "--results", "out")
    assert "job 9: 1 completed" in finished.out and "job 12: 1 pending, 1 running" in finished.out
    assert "processes: 1 running" in finished.out
    assert "squeue also says what is no task: slurm_load: a warning, 1|2|3|RUNNING|5" in finished.err
    cancelled = kvbench("cancel", "--results", "out")
    assert cancelled.code == 0 and "cancelled job 12" in cancelled.err and "job 9" not in cancelled.err
    assert (tmp_path / "cancelled").read_text() == "12\n"


SLEEP = """
import fcntl, sys, time
lock = open(sys.argv[1], "w")
if sys.argv[2] != "open":
    fcntl.flock(lock, fcntl.LOCK_EX)
print(flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("held", ["locked", "open", "elsewhere"])
def test_cancel_ends_the_holder_of_a_lock(kvbench: Command, tmp_path: Path, held: str) -> None:
    """A process that the folder names, even one that reads its files, is left alone; it may find the request."""
    processes, started = tmp_path / "out" / "processes", ResultsFolder("out")
    heart = Heartbeat(started, 100.0, 180.0)
    name = heart.start()
    heart.end("finished")
    lock = tmp_path / "lock" if held == "elsewhere" else processes / f"{name}.lock"
    with subprocess.Popen([sys.executable, "-c", SLEEP, str(lock), held], stdout=subprocess.PIPE) as sleeping:
        assert sleeping.stdout is not None and sleeping.stdout.readline() and heart.process is not None
        if held == "elsewhere":
            (processes / f"{name}.lock").symlink_to(lock)
        (tmp_path / "out" / "leases").mkdir()
        (tmp_path / "out" / "leases" / "group-1.0").write_text(name)
        for was, message in (
            ("1", "no job or process works on this folder"),
            (born(sleeping.pid), f"process {sleeping.pid}"),
        ):
            described = replace(heart.process, pid=sleeping.pid, born=was, ended=None)
            (processes / f"{name}.json").write_text(with_checksum(json.dumps(asdict(described))))
            assert message in kvbench("cancel", "--results", "out").err
        if held == "locked":
            assert sleeping.wait(timeout=60) == -signal.SIGTERM
        else:
            assert sleeping.poll() is None and (processes / f"{name}.cancel").exists()
            sleeping.kill()


def test_a_process_elsewhere_finds_word_to_stop(kvbench: Command, tmp_path: Path) -> None:
    """By a file, which it sees with its next heartbeat."""
    there = write_process(tmp_path / "out", machine="another")
    assert "stops with its next heartbeat" in kvbench("cancel", "--results", "out").err
    assert (tmp_path / "out" / "processes" / f"{there.name}.cancel").exists()
    heart = Heartbeat(ResultsFolder("out"), 0.01, 180.0)
    name = heart.start()
    assert heart.process is not None and heart.process.works_on(ResultsFolder("out"))
    (tmp_path / "out" / "processes" / f"{name}.cancel").touch()
    for _ in range(1000):
        if heart.cancelled:
            break
        heart._ended.wait(0.01)
    heart.end("finished")
    assert not heart.process.works_on(ResultsFolder("out")) and not [*(tmp_path / "out").rglob(f"{name}.lock")]
    assert heart.cancelled and not (tmp_path / "out" / "processes" / f"{name}.cancel").exists()
    queue = JobQueue(ResultsFolder("out"))
    queue._heartbeat.cancelled = True
    with pytest.raises(Exception, match="kvbench cancel"):
        queue.check()


def test_shards_make_a_sweep(kvbench: Command, tiny: tuple[str, ...]) -> None:
    first = kvbench("run", *tiny, *CELLS, "--shard", "1/2")
    assert first.code == 0 and "2 cells, shard 1/2: 4 rows to run from 2 prompts" in first.err
    assert "2 rows to run from 1 prompt" in kvbench("run", *tiny, *CELLS, "--shard=2/2").err
    assert "all 6 rows are in out" in kvbench("run", *tiny, *CELLS).err


class Child(Forked):
    """A process of launcher=local that is forked, and slow; its stderr is a pipe of the folder that it works in."""

    def __init__(self, command: list[str], **_: object) -> None:
        assert command[:5] == [sys.executable, "-P", "-m", "kvbench", "run"]
        folder = Path(tempfile.mkdtemp())
        os.mkfifo(folder / "err")
        super().__init__(lambda: self.work(command[4:]), Path.cwd(), folder)
        self.stderr = (folder / "err").open()
        shutil.rmtree(folder)

    def work(self, arguments: list[str]) -> int:
        usual = Answers.make

        def slow(*given: Any) -> Iterator[JobResult]:
            self.before()
            yield from usual(*given)

        Answers.make = slow  # type: ignore[method-assign]
        return main(arguments)

    def before(self) -> None:
        """What it does before each prompt, whose lease it holds."""
        time.sleep(0.3)


class Killed(Child):
    """One that is killed with its first prompt."""

    def before(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def started_as(process: type[Child]) -> SimpleNamespace:
    """What stands in for `subprocess` where launcher=local starts its processes."""
    return SimpleNamespace(**{**vars(subprocess), "Popen": process})


@pytest.mark.parametrize(
    ("samples", "is_forked"), [(24, True), pytest.param(120, False, marks=pytest.mark.slow)], ids=["forks", "processes"]
)
def test_local_processes_stop_together_and_make_the_rows_of_one(
    kvbench: Command,
    tiny: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    samples: int,
    is_forked: bool,
) -> None:
    """What the launcher is told goes on to its processes, and what they say comes back."""
    settings, over = (*tiny, *CELLS, f"task.samples={samples}"), threading.Event()
    if is_forked:
        monkeypatch.setattr("kvbench.run.launch.local.subprocess", started_as(Child))

    def signal_both() -> None:
        """As soon as both are at work, and so listen."""
        while len(read_processes(tmp_path / "out")) < 2 and not over.wait(0.01):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, lambda number, frame: None)  # one that comes too late ends no tests
    telling = threading.Thread(target=signal_both)
    try:
        telling.start()
        stopped = kvbench("run", *settings, "launcher=local", "launcher.processes=2")
        over.set()
        telling.join()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert stopped.code == 75, stopped.err
    assert "[0] kvbench: 2 cells" in stopped.err and "[1] kvbench: 2 cells" in stopped.err
    left = kvbench("status", "--results", "out")
    assert left.code == 75 and f"of {2 * samples} rows done" in left.out
    assert kvbench("run", *settings).code == kvbench("run", *settings, "results.dir=one").code == 0
    assert outcomes(tmp_path / "out") == outcomes(tmp_path / "one")
    assert sum(process.rows for process in read_processes(tmp_path / "out")) == 2 * samples
    lines = [path.read_text().splitlines() for path in (tmp_path / "out" / "rows").iterdir()]
    assert sum(map(len, lines)) == 2 * samples


def test_what_a_killed_process_held_is_made_and_the_table_printed(
    kvbench: Command, tiny: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the calling process, as all others were killed; which signal killed them is said."""
    settings = (*tiny, *CELLS)
    with monkeypatch.context() as changed:
        changed.setattr("kvbench.run.launch.local.subprocess", started_as(Killed))
        finished = kvbench("run", *settings, "launcher=local", "launcher.processes=2")
    assert finished.code == 0, finished.err
    assert "kvbench: 2 of 2 processes were killed ([" in finished.err and "SIGKILL" in finished.err
    assert "this process runs what the others left" in finished.err
    assert re.search(r"^snapkv +attn +3 ", finished.out, re.MULTILINE)
    assert kvbench("run", *settings, "results.dir=one").code == 0
    assert outcomes(tmp_path / "out") == outcomes(tmp_path / "one")
    lines = [path.read_text().splitlines() for path in (tmp_path / "out" / "rows").iterdir()]
    assert sum(map(len, lines)) == 6
