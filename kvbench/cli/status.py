"""`kvbench status`: how far the sweeps of a folder are. Reads the folder and squeue, writes nothing."""

from collections.abc import Mapping, Sequence
from datetime import timedelta

from rich.table import Table

from kvbench.cli.errors import Exit
from kvbench.cli.hanging import say as write
from kvbench.cli.terminal import screen
from kvbench.cli.usage import show
from kvbench.records import ResultsFolder
from kvbench.run.launch.state import State, state
from kvbench.support.errors import UserError
from kvbench.support.nearest import closest
from kvbench.support.printable import printable

USAGE = """kvbench status [--results DIR] [--json]: rows done and failed, who is at work, time left, device hours.

  --results DIR   a results folder (default results/runs)
  --json          one JSON object instead of text

  kvbench status --results results/runs
  kvbench status --json
Exit codes: 0 all rows are there, 4 all are there and some have failed, 75 rows are missing, 3 no such folder.
"""
DEFAULT = "results/runs"


def main(arguments: Sequence[str]) -> int:
    """Print it."""
    if any(argument in ("-h", "--help") for argument in arguments):
        show(USAGE)
        return Exit.OK
    folder, flags = results_of(arguments, ("--json",), "status")
    found = state(folder)
    if flags:
        print(found.to_json())
    else:
        _print(found, folder)
    if found.left:
        return Exit.TEMPORARY
    return Exit.INCOMPLETE if found.failed else Exit.OK


def results_of(arguments: Sequence[str], flags: Sequence[str], command: str) -> tuple[ResultsFolder, set[str]]:
    """The folder that --results names and which of `flags` are there. Raises ValueError for anything else."""
    folder, found, rest = DEFAULT, set(), list(arguments)
    while rest:
        word = rest.pop(0)
        if word == "--results" and rest:
            folder = rest.pop(0)
        elif word.startswith("--results="):
            folder = word.partition("=")[2]
        elif word in flags:
            found.add(word)
        else:
            raise UserError(f"{command}: unknown {word}: {closest(word, ('--results', *flags, '--help'))}")
    return ResultsFolder(folder), found


def _print(found: State, folder: ResultsFolder) -> None:
    console = screen()

    def say(text: str) -> None:
        write(console, text)

    share = f" ({100 * found.done / found.rows:.0f} %)" if found.rows else ""
    failed = f", {found.failed} of them failed" if found.failed else ""
    say(f"{folder.path}: {found.done} of {found.rows} rows done{share}{failed}, {found.left} left")
    if found.processes:
        say(f"processes: {_counts(found.processes)}; {found.prompts_running} prompts being made")
    for job, tasks in (found.jobs or {}).items():
        say(f"job {job}: {_counts(tasks) or 'SLURM knows it no more'}")
    if found.jobs is None:
        say("jobs: squeue does not answer here")
    if found.left:
        pace = f" at {60 * found.rows_per_second:.3g} rows a minute" if found.rows_per_second else ""
        eta = found.eta_seconds
        say(f"time left: {'unknown' if eta is None else timedelta(seconds=round(eta))}{pace}")
    say(f"device hours: {found.device_hours:.3g}")
    if found.running:
        table = Table(box=None, pad_edge=False)
        for name in ("at work", "job", "devices", "rows", "failed", "last heartbeat"):
            table.add_column(name, overflow="fold")
        for one in found.running.values():
            said = (f"{one.host} {one.pid}", one.job or "", one.devices, one.rows, one.errors, one.beat_utc)
            table.add_row(*(printable(str(part)) for part in said))
        console.print(table)


def _counts(parts: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {what}" for what, number in sorted(parts.items()))
