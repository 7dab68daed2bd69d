"""`kvbench cancel`: ask everything that works on a folder to stop after its current sample."""

import argparse
import os
import shlex
import signal

from kvbench.cli.errors import ExitCode
from kvbench.cli.parser import Parser
from kvbench.cli.terminal import tell, warn
from kvbench.records import ResultsFolder, read_processes
from kvbench.records.lines import MISSING, TORN
from kvbench.records.processes import request_cancel
from kvbench.run.launch.slurm import cancel, read_jobs, unfinished
from kvbench.support.errors import MissingFile, UserError
from kvbench.support.quantity import count_noun


def declare(parser: Parser) -> None:
    """Add the flags of the command."""
    parser.description = (
        "Stop the jobs and processes that work on a results folder. Recorded rows are kept; the same run command "
        "continues later."
    )
    parser.epilog = """
  kvbench cancel --results results/runs
  kvbench cancel --results results/runs --requests
SLURM jobs are ended with scancel. Your processes on this machine get SIGTERM and stop after their current sample; \
processes on other machines stop at their next heartbeat. Every report counts the rows of a request that are not made \
as missing: --requests withdraws it, and its command requests it again.
"""
    parser.add_results()
    parser.add_argument(
        "--requests", action="store_true", help="also withdraw the requests of commands whose rows are not all there"
    )


def main(flags: argparse.Namespace) -> int:
    """End jobs and processes and report which. Raises UserError if SLURM refuses."""
    folder = ResultsFolder(flags.results)
    if not folder.path.is_dir():
        raise MissingFile(f"no results in {folder.path}: name a folder of kvbench run with --results DIR")
    ending = unfinished(read_jobs(folder))
    if ending is None:
        raise UserError(
            "the folder has SLURM jobs, but squeue does not answer here: run kvbench cancel on a machine of their "
            "cluster"
        )
    if ending:
        cancel(ending)
    messages = [f"cancelled job {job.number}" for job in ending]
    for process in read_processes(folder, warn):
        if process.has_ended or process.job is not None:  # SLURM ends the processes of a job
            continue
        if process.here and process.works_on(folder):
            os.kill(process.pid, signal.SIGTERM)
            messages.append(f"process {process.pid} stops after its sample")
        else:
            request_cancel(folder, process)
            messages.append(f"process {process.pid} on {process.host} stops with its next heartbeat, if it still runs")
    for message in messages or ["no job or process works on this folder"]:
        tell(message)
    if flags.requests:
        for message in _withdraw_requests(folder) or ["all rows that were requested are there"]:
            tell(message)
    return ExitCode.OK


def _withdraw_requests(folder: ResultsFolder) -> list[str]:
    """Withdraw the requests that lack rows; returns a line on each. Raises UserError for a damaged request."""
    from kvbench.records.rows import recorded
    from kvbench.report.row_warnings import count_missing

    rows = recorded(folder, (), lambda text: None if TORN in text else warn(text))
    messages = []
    for name, request in folder.read_requests().items():
        if missing := count_missing(request.cells, rows):
            folder.withdraw(name)
            command = shlex.join(request.arguments)
            messages.append(
                f"withdrew the request of {count_noun(sum(request.cells.values()), 'row')}, of which {missing} "
                f"{MISSING}: {command}"
            )
    return messages
