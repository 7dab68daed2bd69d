"""`kvbench status`: how far the sweeps of a folder are. Reads the folder and squeue (never sacct), writes nothing."""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from kvbench.cli.errors import ExitCode
from kvbench.cli.parser import Parser
from kvbench.cli.terminal import say, screen, warn
from kvbench.records import Process, ResultsFolder, lease_owners, read_processes
from kvbench.records.lines import TORN
from kvbench.run.launch.slurm import Job, queue, read_jobs
from kvbench.support.errors import MissingFile

COLUMNS = ("at work", "job", "devices", "rows", "failed", "last heartbeat")
ALIVE = ("RUNNING", "COMPLETING", "SUSPENDED")


@dataclass(frozen=True)
class Status:
    """The progress of all commands on a results folder.

    rows, done, failed: rows requested, recorded (failed ones included), and failed. processes: how many are running,
    ended, killed or silent. running: the last heartbeat of working processes, by name. jobs: tasks per job and state,
    None if squeue does not answer. rows_per_second: of working processes. device_hours: of all processes so far;
    rows_per_device_hour: that they recorded in each.
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
    rows_per_device_hour: float | None

    @property
    def rows_left(self) -> int:
        """Rows that are not recorded yet."""
        return self.rows - self.done

    @property
    def is_starting(self) -> bool:
        """Whether the processes at work have recorded no request yet, as they do when a model has answered."""
        return bool(self.running) and not self.rows

    @property
    def eta_seconds(self) -> float | None:
        """Time left at the present pace. None if no process is at work, or has recorded a row yet."""
        if not self.rows_left and not self.is_starting:
            return 0.0
        return self.rows_left / self.rows_per_second if self.rows_per_second else None

    def to_json(self) -> str:
        """Return one object; unknown values are null."""
        more: dict[str, Any] = {"left": self.rows_left, "eta_seconds": self.eta_seconds}
        return json.dumps(asdict(self) | more, indent=2)


def declare(parser: Parser) -> None:
    """Add the flags of the command."""
    parser.description = "Rows done and failed, running processes and jobs, time left, device hours."
    parser.epilog = """
  kvbench status --results results/runs
  kvbench status --json
Exit codes: 0 all rows are there, 4 all are there and some have failed, 75 rows are missing, 3 no such folder.
"""
    parser.add_results()
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")


def main(flags: argparse.Namespace) -> int:
    """Print the state of a folder."""
    folder = ResultsFolder(flags.results)
    current = status(folder)
    if flags.json:
        print(current.to_json())
    else:
        _print(current, folder)
    if current.rows_left or current.is_starting:
        return ExitCode.TEMPORARY
    return ExitCode.INCOMPLETE if current.failed else ExitCode.OK


def _print(current: Status, folder: ResultsFolder) -> None:
    console = screen()
    share = f" ({100 * current.done / current.rows:.0f} %)" if current.rows else ""
    failed = f", {current.failed} of them failed" if current.failed else ""
    done = f"{current.done} of {current.rows} rows done{share}{failed}, {current.rows_left} left"
    if current.is_starting:
        began = min(process.started_utc for process in current.running.values())
        done = f"no rows yet, a process has been starting since {began}; it counts its rows when its model has answered"
    say(console, f"{folder.path}: {done}")
    if current.processes:
        say(console, f"processes: {_counts(current.processes)}; {current.prompts_running} prompts being made")
    for job, tasks in (current.jobs or {}).items():
        say(console, f"job {job}: {_counts(tasks) or 'SLURM no longer lists it'}")
    if current.jobs is None:
        say(console, "jobs: squeue does not answer here")
    if current.rows_left:
        pace = f" at {3600 * current.rows_per_second:,.0f} rows an hour" if current.rows_per_second else ""
        eta = current.eta_seconds
        say(console, f"time left: {'unknown' if eta is None else timedelta(seconds=round(eta))}{pace}")
    pace = f", {current.rows_per_device_hour:,.0f} rows in each" if current.rows_per_device_hour else ""
    say(console, f"device hours: {current.device_hours:.3g}{pace}")
    if current.running:
        from kvbench.report.formats.table import Table, TableRow
        from kvbench.report.formats.text import print_table

        lines = []
        for process in current.running.values():
            job = "" if process.job is None else process.job
            counts = (f"{process.devices:.3g}", str(process.rows), str(process.errors))
            lines.append(TableRow.of((f"{process.host} {process.pid}", job), (*counts, process.beat_utc)))
        print_table(Table.of(COLUMNS[:2], COLUMNS[2:], lines, align="lrrl"), sys.stdout)


def _counts(parts: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {kind}" for kind, number in sorted(parts.items()))


def status(folder: ResultsFolder) -> Status:
    """Return the status of a folder; damaged rows are warned of. Raises MissingFile without results, UserError if
    damaged.
    """
    from kvbench.records.rows import recorded, within

    if not any((folder.path / name).is_dir() for name in ("rows", "sweeps", "processes", "jobs")):
        raise MissingFile(
            f"no results in {folder.path}: name a folder of kvbench run with --results DIR; a run that has just begun "
            "writes there when its settings, model and data are checked"
        )
    requested = folder.read_requested()
    rows = recorded(folder, (), lambda text: None if TORN in text else warn(text))  # or a line that is being written
    counted = within(rows, requested) if requested else rows
    jobs = read_jobs(folder)
    task_states = queue(jobs)
    processes = read_processes(folder, warn)
    states = {process.name: _state(process, task_states or {}) for process in processes}
    running = {process.name: process for process in processes if states[process.name] == "running"}
    hours = sum(process.seconds * process.devices for process in processes) / 3600
    paces = [process.rows / process.seconds for process in running.values() if process.rows and process.seconds]
    return Status(
        rows=sum(requested.values()) if requested else rows.num_rows,
        done=counted.num_rows,
        failed=counted.num_rows - counted["error"].null_count,
        prompts_running=sum(owner in running for owner in lease_owners(folder)),
        processes=dict(Counter(states.values())),
        running=running,
        jobs=None if task_states is None else {job.number: _task_states(job, task_states) for job in jobs},
        rows_per_second=sum(paces) or None,
        device_hours=hours,
        rows_per_device_hour=sum(process.rows for process in processes) / hours if hours else None,
    )


def _state(process: Process, task_states: dict[str, str]) -> str:
    """Return running, ended, killed (it ran on this machine and is gone), or silent for longer than its leases last."""
    if process.ended is not None:
        return "ended"
    if process.here:
        return "killed" if process.has_ended else "running"
    if process.job is not None and task_states.get(process.job) in ALIVE:
        return "running"
    silent = (datetime.now(UTC) - datetime.fromisoformat(process.beat_utc)).total_seconds()
    return "silent" if silent > process.lease_seconds else "running"


def _task_states(job: Job, task_states: dict[str, str]) -> dict[str, int]:
    """Return the number of tasks of a job by state; tasks that SLURM has forgotten are not counted."""
    states = (state.lower() for name, state in task_states.items() if name.partition("_")[0] == job.number)
    return dict(Counter(states))
