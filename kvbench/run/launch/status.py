"""How far a results folder is, from its files and from squeue if that is there; sacct is never used."""

import json
from collections import Counter
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from kvbench.records import Process, ResultsFolder, lease_owners, read_processes, read_rows
from kvbench.records.lines import TORN, Warn
from kvbench.run.launch.slurm import Job, queue, read_jobs
from kvbench.support.errors import MissingFile

ALIVE = ("RUNNING", "COMPLETING", "SUSPENDED")


@dataclass(frozen=True)
class Status:
    """The progress of all commands on a results folder.

    rows, done, failed: rows requested, recorded (failed ones included), and failed. processes: how many are running,
    ended, killed or silent. running: the last heartbeat of those at work, by name. jobs: tasks per job and state, None
    if squeue does not answer. rows_per_second: of those at work. device_hours: of all processes so far.
    """

    rows: int
    done: int
    failed: int
    prompts_running: int
    processes: dict[str, int]
    running: dict[str, Process]
    jobs: dict[str, dict[str, int]] | None
    rows_per_second: float | None
    device_hours: float

    @property
    def left(self) -> int:
        """Rows that are not recorded yet."""
        return self.rows - self.done

    @property
    def eta_seconds(self) -> float | None:
        """Time left at the present pace. None if no process is at work, or has recorded a row yet."""
        if not self.left:
            return 0.0
        return self.left / self.rows_per_second if self.rows_per_second else None

    def to_json(self) -> str:
        """One object; unknown values are null."""
        more: dict[str, Any] = {"left": self.left, "eta_seconds": self.eta_seconds}
        return json.dumps(asdict(self) | more, indent=2)


def status(folder: ResultsFolder, warn: Warn) -> Status:
    """Damaged rows go to ``warn``. Raises FileNotFoundError without results; ValueError for other damaged files."""
    if not any((folder.path / name).is_dir() for name in ("rows", "sweeps", "processes", "jobs")):
        raise MissingFile(f"no results in {folder.path}: name a folder of kvbench run with --results DIR")
    requested = folder.read_requested()
    rows = read_rows(folder, lambda text: None if TORN in text else warn(text))  # or a line that is being written
    counted = [row for row in rows if row.sample < requested.get(row.cell, 0)] if requested else rows
    jobs = read_jobs(folder)
    task_states = queue(jobs)
    processes = read_processes(folder)
    states = {process.name: _state(process, task_states or {}) for process in processes}
    running = {process.name: process for process in processes if states[process.name] == "running"}
    paces = [process.rows / process.seconds for process in running.values() if process.rows and process.seconds]
    return Status(
        rows=sum(requested.values()) if requested else len(rows),
        done=len(counted),
        failed=sum(row.error is not None for row in counted),
        prompts_running=sum(owner in running for owner in lease_owners(folder)),
        processes=dict(Counter(states.values())),
        running=running,
        jobs=None if task_states is None else {job.number: _task_states(job, task_states) for job in jobs},
        rows_per_second=sum(paces) or None,
        device_hours=sum(process.seconds * process.devices for process in processes) / 3600,
    )


def _state(process: Process, task_states: dict[str, str]) -> str:
    """running, ended, killed (it ran on this machine and is gone), or silent for longer than its leases last."""
    if process.ended is not None:
        return "ended"
    if process.here:
        return "killed" if process.gone else "running"
    if process.job is not None and task_states.get(process.job) in ALIVE:
        return "running"
    silent = (datetime.now(UTC) - datetime.fromisoformat(process.beat_utc)).total_seconds()
    return "silent" if silent > process.lease_seconds else "running"


def _task_states(job: Job, task_states: dict[str, str]) -> dict[str, int]:
    """The number of tasks of a job by state; tasks that SLURM has forgotten are not counted."""
    states = (state.lower() for name, state in task_states.items() if name.partition("_")[0] == job.number)
    return dict(Counter(states))
