"""`kvbench cancel`: ask everything that works on a folder to stop after its current sample."""

import os
import signal
from collections.abc import Sequence

from kvbench.cli.errors import Exit
from kvbench.cli.status import results_of
from kvbench.cli.terminal import tell
from kvbench.cli.usage import show
from kvbench.records import ResultsFolder, read_processes
from kvbench.records.processes import request_cancel
from kvbench.run.launch.jobs import cancel, queue, read_jobs
from kvbench.support.errors import MissingFile, UserError

USAGE = """kvbench cancel [--results DIR]: end what works on a results folder; what is recorded stays, and runs resume.

  --results DIR   a results folder (default results/runs)

  kvbench cancel --results results/runs
Jobs of SLURM are ended with scancel. Processes of this machine get SIGTERM and end after their current sample; those of
other machines find a file that tells them to, with their next heartbeat.
"""
GONE = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE")


def main(arguments: Sequence[str]) -> int:
    """Cancel and say what. Raises ValueError where SLURM refuses."""
    if any(argument in ("-h", "--help") for argument in arguments):
        show(USAGE)
        return Exit.OK
    folder, _ = results_of(arguments, (), "cancel")
    if not folder.path.is_dir():
        raise MissingFile(f"no results in {folder.path}: name a folder of kvbench run with --results DIR")
    said = [*_jobs(folder), *_processes(folder)]
    for line in said or ["nothing works on this folder"]:
        tell(line)
    return Exit.OK


def _jobs(folder: ResultsFolder) -> list[str]:
    jobs = read_jobs(folder)
    states = queue(jobs)
    if states is None:
        raise UserError("the folder has jobs of SLURM and squeue does not answer here: cancel where they run")
    waiting = {name.partition("_")[0] for name, state in states.items() if state not in GONE}
    ending = [job for job in jobs if job.number in waiting]
    if ending:
        cancel(ending)
    return [f"cancelled job {job.number}" for job in ending]


def _processes(folder: ResultsFolder) -> list[str]:
    """Those of jobs are ended by SLURM."""
    said = []
    for process in read_processes(folder):
        if process.gone or process.job is not None:
            continue
        if process.here:
            os.kill(process.pid, signal.SIGTERM)
            said.append(f"told process {process.pid} to stop after its sample")
        else:
            request_cancel(folder, process)
            said.append(f"left word for process {process.pid} on {process.host}, if it still runs")
    return said
