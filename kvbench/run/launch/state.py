"""How far a results folder is, from its files and from squeue where that is there; sacct is never asked."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kvbench.records import Process, ResultsFolder, read_processes, read_rows
from kvbench.records.leases import ROOM as LEASES
from kvbench.run.launch.jobs import Job, queue, read_jobs
from kvbench.support.errors import MissingFile

ALIVE = ("RUNNING", "COMPLETING", "SUSPENDED")


@dataclass(frozen=True)
class State:
    """Rows asked for, recorded (failed ones included), failed; prompts being made; processes by what they do; tasks of
    jobs by what squeue says, None where it says nothing; rows a second of those at work; what their work has cost.

    `running` maps the names of processes at work to what they said last.
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
        """Rows that nobody has recorded."""
        return self.rows - self.done

    @property
    def eta_seconds(self) -> float | None:
        """Until all rows are there, if those at work go on as they did. None where nobody works, or none is done."""
        if not self.left:
            return 0.0
        return self.left / self.rows_per_second if self.rows_per_second else None

    def to_json(self) -> str:
        """One object, blank where nothing is known."""
        more: dict[str, Any] = {"left": self.left, "eta_seconds": self.eta_seconds}
        return json.dumps(asdict(self) | more, indent=2)


def state(folder: ResultsFolder) -> State:
    """Raises FileNotFoundError for a folder without rows, processes and sweeps; ValueError for broken files."""
    if not any((folder.path / room).is_dir() for room in ("rows", "sweeps", "processes", "jobs")):
        raise MissingFile(f"no results in {folder.path}: name a folder of kvbench run with --results DIR")
    asked = folder.read_asked()
    rows = read_rows(folder, lambda _: None)  # a line that is being written is no news
    wanted = [row for row in rows if row.sample < asked.get(row.cell, 0)] if asked else rows
    jobs = read_jobs(folder)
    states = queue(jobs)
    processes = read_processes(folder)
    doing = {process.name: _doing(process, states or {}) for process in processes}
    running = {process.name: process for process in processes if doing[process.name] == "running"}
    rates = [process.rows / process.seconds for process in running.values() if process.rows and process.seconds]
    return State(
        rows=sum(asked.values()) if asked else len(rows),
        done=len(wanted),
        failed=sum(row.error is not None for row in wanted),
        prompts_running=sum(owner in running for owner in _owners(folder.path / LEASES)),
        processes=dict(Counter(doing.values())),
        running=running,
        jobs=_by_job(jobs, states),
        rows_per_second=sum(rates) or None,
        device_hours=sum(process.seconds * process.devices for process in processes) / 3600,
    )


def _doing(process: Process, states: dict[str, str]) -> str:
    """running, ended, killed (it ran here and is gone), or silent for longer than its leases last."""
    if process.ended is not None:
        return "ended"
    if process.here:
        return "killed" if process.gone else "running"
    if process.job is not None and states.get(process.job) in ALIVE:
        return "running"
    silent = (datetime.now(UTC) - datetime.fromisoformat(process.beat_utc)).total_seconds()
    return "silent" if silent > process.lease_seconds else "running"


def _owners(room: Path) -> list[str]:
    owners = []
    for path in room.glob("*"):
        try:
            owners.append(path.read_text("ascii", "replace").strip())
        except OSError:
            continue  # released meanwhile
    return owners


def _by_job(jobs: Sequence[Job], states: dict[str, str] | None) -> dict[str, dict[str, int]] | None:
    """How many tasks of each job are in which state; those that SLURM has forgotten are not counted."""
    if states is None:
        return None
    return {
        job.number: dict(
            Counter(state.lower() for name, state in states.items() if name.partition("_")[0] == job.number)
        )
        for job in jobs
    }
