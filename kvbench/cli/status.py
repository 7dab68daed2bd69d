"""`kvbench status`: how far the sweeps of a folder are. Reads the folder and squeue, writes nothing."""

import argparse
import sys
from collections.abc import Mapping
from datetime import timedelta

from kvbench.cli.errors import Exit
from kvbench.cli.parser import Parser
from kvbench.cli.terminal import say, screen, warn, width_of
from kvbench.records import ResultsFolder
from kvbench.run.launch.status import Status, status
from kvbench.support.text import printable

COLUMNS = ("at work", "job", "devices", "rows", "failed", "last heartbeat")


def declare(parser: Parser) -> None:
    """The flags of the command."""
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
    current = status(folder, warn)
    if flags.json:
        print(current.to_json())
    else:
        _print(current, folder)
    if current.left:
        return Exit.TEMPORARY
    return Exit.INCOMPLETE if current.failed else Exit.OK


def _print(current: Status, folder: ResultsFolder) -> None:
    console = screen()
    share = f" ({100 * current.done / current.rows:.0f} %)" if current.rows else ""
    failed = f", {current.failed} of them failed" if current.failed else ""
    say(console, f"{folder.path}: {current.done} of {current.rows} rows done{share}{failed}, {current.left} left")
    if current.processes:
        say(console, f"processes: {_counts(current.processes)}; {current.prompts_running} prompts being made")
    for job, tasks in (current.jobs or {}).items():
        say(console, f"job {job}: {_counts(tasks) or 'SLURM no longer lists it'}")
    if current.jobs is None:
        say(console, "jobs: squeue does not answer here")
    if current.left:
        pace = f" at {60 * current.rows_per_second:.3g} rows per minute" if current.rows_per_second else ""
        eta = current.eta_seconds
        say(console, f"time left: {'unknown' if eta is None else timedelta(seconds=round(eta))}{pace}")
    say(console, f"device hours: {current.device_hours:.3g}")
    if current.running:
        from kvbench.report.tables.grid import Grid, plain_console

        lines = [
            (
                f"{process.host} {process.pid}",
                process.job,
                process.devices,
                process.rows,
                process.errors,
                process.beat_utc,
            )
            for process in current.running.values()
        ]
        texts = [[printable(str("" if value is None else value)) for value in line] for line in lines]
        Grid(COLUMNS, texts, "lllrrl").print(plain_console(sys.stdout), 1, width_of(console))


def _counts(parts: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {kind}" for kind, number in sorted(parts.items()))
