"""A sweep as an array of SLURM jobs: one task for each shard of the samples of each model. And the jobs of a folder.

submitit (MIT, github.com/facebookincubator/submitit) writes the batch script, sends the tasks and requeues them. A task
that meets its time limit finishes its sample and is requeued; the rows are on disk, so that it resumes.
"""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any

from kvbench.records import ResultsFolder
from kvbench.records.folder import replacing
from kvbench.records.lines import listed, read_json
from kvbench.run.launch.launcher import Launcher, PartToRun, PendingSweep
from kvbench.run.launch.request import SubmitRequest
from kvbench.support.annotations import Help, Range, check_ranges
from kvbench.support.children import SAFE_PATH
from kvbench.support.errors import UserError
from kvbench.support.quantity import count_noun, shortened
from kvbench.support.text import printable

JOBS, LOGS = "jobs", "logs"
COMMAND_SECONDS = 60
MOST_MINUTES = 10**7
GONE = (
    *("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "DEADLINE"),
    *("NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "PREEMPTED", "REVOKED"),
)
"""States of tasks that make no rows any more."""
_TASK = re.compile(r"\d+\|(?P<array>\d+)\|(?P<index>N/A|\d+)\|(?P<state>[A-Z_]+)")


@dataclass(frozen=True)
class Slurm(Launcher):
    """The settings of sbatch, under its own names if it has them. None leaves a setting to the cluster."""

    submits = True
    name: str = "slurm"
    partition: Annotated[str | None, Help("null: the cluster's default, as for all of these settings")] = None
    account: Annotated[str | None, Help("the account that is charged")] = None
    qos: Annotated[str | None, Help("quality of service")] = None
    gpus: Annotated[int, Help("of each task; 0: none"), Range(0, 1024)] = 1
    cpus: Annotated[int | None, Help("of each task"), Range(1, 10**5)] = None
    memory_gb: Annotated[float | None, Help("of each task"), Range(1, 10**6)] = None
    time: Annotated[
        int | str, Help("minutes, 4:00:00 or 1-12 (days-hours); a task that needs longer is requeued and goes on")
    ] = 240
    shards: Annotated[int, Help("parts that the samples of each model are divided into"), Range(1, 10**5)] = 4
    parallel: Annotated[int, Help("tasks that run at the same time, at most"), Range(1, 10**5)] = 16
    warning_seconds: Annotated[
        int,
        Help("SLURM warns a task (SIGUSR2) so long before its time limit; more than the longest sample takes"),
        Range(1, 10**6),
    ] = 120
    requeues: Annotated[int, Help("how often a task may reach its time limit"), Range(0, 10**6)] = 100
    python: Annotated[
        str | None,
        Help('what starts Python in a task, e.g. "apptainer exec --nv image.sif python"; null: this interpreter'),
    ] = None
    setup: Annotated[
        tuple[str, ...],
        Help('lines of shell before the command, e.g. ["module load cuda", "source env/bin/activate"]'),
    ] = ()
    extra: Annotated[
        dict[str, str | int | None],
        Help("other options of sbatch by name, without dashes, e.g. {constraint:h100,reservation:bench}"),
    ] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_ranges(self, "launcher")
        if not 1 <= self.minutes <= MOST_MINUTES:
            raise UserError(f"launcher.time={self.time}: allowed: 1 to {MOST_MINUTES} minutes")
        if self.warning_seconds >= self.minutes * 60:
            raise UserError(
                f"launcher.warning_seconds={self.warning_seconds} must be less than launcher.time={self.time} "
                f"({count_noun(self.minutes, 'minute')}): raise the time"
            )

    @property
    def minutes(self) -> int:
        """The time limit of a task, rounded up. Raises UserError for a time that sbatch would not take."""
        days, dash, clock = str(self.time).rpartition("-")
        if not (re.fullmatch(r"\d+(:\d+){0,2}", clock) and days.isdecimal() == bool(dash)):
            raise UserError(
                f"launcher.time={self.time}: allowed: minutes (240), hours:minutes:seconds (4:00:00), days-hours (1-12)"
            )
        numbers = [int(number) for number in clock.split(":")]
        if not days and len(numbers) < 3:  # minutes, or minutes:seconds
            numbers = [0, *numbers]
        hours, minutes, seconds = [*numbers, 0, 0][:3]
        return (int(days or 0) * 24 + hours) * 60 + minutes + (seconds + 59) // 60

    def launch(self, work: PendingSweep) -> int:
        """Submit what is left. Raises ValueError if submitit or SLURM is missing, or SLURM refuses."""
        if shutil.which("sbatch") is None or shutil.which("srun") is None:
            _executor_class()
            raise UserError(
                "launcher=slurm: no sbatch and srun on this machine; run the command on a node that has them"
            )
        executor = self._executor(work.results)
        tasks = work.tasks(self.shards)
        try:
            jobs = executor.map_array(Requeued(), tasks)
        except Exception as error:  # submitit has its own errors, and passes on the message of sbatch
            raise UserError(f"SLURM refused the job: {' '.join(str(error).split())}") from error
        number, now = jobs[0].job_id.partition("_")[0], datetime.now(UTC).isoformat(timespec="seconds")
        folder, job = work.results.path, Job(number, len(tasks), now, tuple(work.command))
        with replacing(folder / JOBS / f"{number}.json") as temporary:
            temporary.write_text(json.dumps(asdict(job), indent=2) + "\n", "utf-8")
        print(
            f"kvbench: submitted job {number} with {count_noun(len(tasks), 'task')}; kvbench status --results {folder} "
            f"shows its progress, kvbench cancel --results {folder} ends it",
            file=sys.stderr,
        )
        return 0

    def request(self, results: ResultsFolder) -> SubmitRequest:
        """Return what `launch` would submit; submitit is needed for its script."""
        limits = self.time, self.minutes, self.requeues, self.memory_gb
        return SubmitRequest(self.shards, self.parallel, self.gpus, *limits, partial(self.script, results))

    def script(self, results: ResultsFolder, tasks: int) -> str:
        """Return the batch script of so many tasks. Nothing is written, and no SLURM is needed, only submitit."""
        executor = self._executor(results)
        if tasks > 1:
            executor.parameters["map_count"] = tasks
        return executor._make_submission_file_text(executor._submitit_command_str, "")

    def _executor(self, results: ResultsFolder) -> Any:
        executor = _executor_class()(results.path / LOGS, self.requeues, python=self.python)
        optional = {
            "partition": self.partition,
            "account": self.account,
            "qos": self.qos,
            "gpus_per_node": self.gpus or None,
            "cpus_per_task": self.cpus,
            "mem": None if self.memory_gb is None else f"{round(self.memory_gb * 1024)}MB",
        }
        executor.update_parameters(
            job_name="kvbench",
            nodes=1,
            ntasks_per_node=1,
            time=self.minutes,
            array_parallelism=self.parallel,
            signal_delay_s=self.warning_seconds,
            setup=[f"export {SAFE_PATH}=1", *self.setup],
            additional_parameters=dict(self.extra),
            **{name: value for name, value in optional.items() if value is not None},
        )
        return executor


def _executor_class() -> Any:
    try:
        import submitit
    except ModuleNotFoundError:
        raise UserError("launcher=slurm needs submitit: pip install 'kvbench[slurm]'") from None

    class Executor(submitit.SlurmExecutor):
        @classmethod
        def affinity(cls) -> int:
            """More than 0: a script can be written without SLURM; `launch` has looked for it."""
            return 2

    return Executor


class Requeued:
    """The callable of a job: runs its task.

    submitit's handler requeues the job at the time signal, after the current sample (`kvbench.work.sweep`). SIGTERM
    requeues nothing: it comes from scancel, or from SLURM, which requeues by itself.
    """

    def __call__(self, task: PartToRun) -> int:
        """End the process with the exit code of the task, unless that is 0."""
        code = task()
        if code:
            sys.exit(code)
        return code

    def checkpoint(self, task: PartToRun) -> Any:
        """Return the same task again: finished work is in the results folder."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, task)


@dataclass(frozen=True)
class Job:
    """A job or an array of jobs: its number, its number of tasks, when and for which command it was submitted."""

    number: str
    tasks: int
    submitted_utc: str
    command: tuple[str, ...]

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[0-9]{1,18}", self.number):  # another word would be an option of scancel
            raise UserError(f"its number is {self.number!r}")


def read_jobs(folder: ResultsFolder) -> list[Job]:
    """Return the jobs of a results folder by number. Raises ValueError for a file that holds something else."""
    jobs = []
    for path in listed(folder.path / JOBS, ".json"):
        job = read_json(Job, path, "a job")
        if job.number != path.stem:
            raise UserError(f"{path} is not a job: its number is {job.number!r}; remove it")
        jobs.append(job)
    return sorted(jobs, key=lambda job: int(job.number))


def active(folder: ResultsFolder, command: Sequence[str]) -> list[str]:
    """Return the numbers of the jobs of a command that wait or run."""
    jobs = [job for job in read_jobs(folder) if job.command == tuple(command)]
    return [job.number for job in unfinished(jobs) or ()]


def unfinished(jobs: Sequence[Job]) -> list[Job] | None:
    """Return those with a task that waits or runs; None if squeue does not answer."""
    states = queue(jobs)
    if states is None:
        return None
    numbers = {name.partition("_")[0] for name, state in states.items() if state not in GONE}
    return [job for job in jobs if job.number in numbers]


def queue(jobs: Iterable[Job]) -> dict[str, str] | None:
    """Return states of the tasks that SLURM remembers, by names such as 12_3 or 12; None if squeue does not answer."""
    numbers = [job.number for job in jobs]
    if not numbers:
        return {}
    if shutil.which("squeue") is None:
        return None
    # given numbers, squeue fails as soon as it has forgotten one of them
    command = ["squeue", "--noheader", "--array", "--me", "--states=all", "--format=%A|%F|%K|%T"]
    try:
        finished = subprocess.run(command, capture_output=True, timeout=COMMAND_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    states, unread = {}, []
    for line in finished.stdout.decode("utf-8", "replace").splitlines():
        if (fields := _TASK.fullmatch(line.strip())) is None:
            unread += [line.strip()] if line.strip() else []
        elif fields["array"] in numbers:
            name = fields["array"]
            states[name if fields["index"] == "N/A" else f"{name}_{fields['index']}"] = fields["state"]
    if unread:
        lines = shortened([printable(line)[:200] for line in unread], 2)
        print(f"kvbench: warning: squeue also says what is no task: {lines}", file=sys.stderr)
    return states


def cancel(jobs: Sequence[Job]) -> None:
    """Ask SLURM to end jobs. Raises ValueError, with its message, if it does not."""
    command = ["scancel", *(job.number for job in jobs)]
    try:
        subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=COMMAND_SECONDS, check=True)
    except FileNotFoundError:
        raise UserError("this machine has no scancel: run kvbench cancel where the jobs were submitted") from None
    except subprocess.SubprocessError as error:
        message = (getattr(error, "stderr", None) or str(error)).strip()
        raise UserError(f"{' '.join(command)}: {message}") from None
