"""The work is handed to SLURM as an array of jobs, by submitit: a task for each shard of the samples of a model.

A task that is stopped by the time limit ends its sample and has itself requeued; rows are where they were, so that it
goes on. submitit (MIT, github.com/facebookincubator/submitit) writes the batch script, sends the task and requeues it.
"""

import shutil
import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from kvbench.run.launch.jobs import Job
from kvbench.run.launch.work import SIGNALS, Task, Work, check_signals
from kvbench.support.errors import UserError

LOGS = "logs"


@dataclass(frozen=True)
class Slurm:
    """What sbatch is asked for, in its own words where it has them; None leaves it to the cluster.

    time: minutes. memory_gb: per node. shards: parts that the samples of each model are divided into. parallel: tasks
    that run at once at most. warning_seconds: how long before the time limit a task is told, enough for its longest
    sample. requeues: how often a task may be told. setup: lines of shell before the command. extra: other options of
    sbatch, by name without dashes.
    """

    name: str = "slurm"
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    gpus: int = 1
    cpus: int | None = None
    memory_gb: float | None = None
    time: int = 240
    shards: int = 4
    parallel: int = 16
    warning_seconds: int = 120
    requeues: int = 100
    setup: tuple[str, ...] = ()
    extra: dict[str, str | int | None] = field(default_factory=dict)
    signals: tuple[str, ...] = SIGNALS

    def __post_init__(self) -> None:
        check_signals(self.signals)
        for name, least in (
            ("gpus", 0), ("time", 1), ("shards", 1), ("parallel", 1), ("warning_seconds", 1), ("requeues", 0)
        ):  # fmt: skip
            if getattr(self, name) < least:
                raise UserError(f"launcher.{name}={getattr(self, name)}: legal: a number of at least {least}")
        if self.warning_seconds >= self.time * 60:
            raise UserError(
                f"launcher.warning_seconds={self.warning_seconds} is not less than launcher.time={self.time} minutes"
            )

    def launch(self, work: Work) -> int:
        """Submit what is left and say so. Raises ValueError where submitit or SLURM is missing, or refuses."""
        executor = self._executor(work)
        tasks = work.tasks(self.shards)
        try:
            jobs = executor.map_array(Requeued(), tasks)
        except Exception as error:  # submitit has errors of its own, and passes on what sbatch said
            raise UserError(f"SLURM took no job: {' '.join(str(error).split())}") from error
        number, now = jobs[0].job_id.partition("_")[0], datetime.now(UTC).isoformat(timespec="seconds")
        Job(number, len(tasks), now, tuple(work.command)).write(work.results)
        folder = work.results.path
        print(
            f"kvbench: submitted job {number} with {len(tasks)} task{'s' * (len(tasks) != 1)}; "
            f"kvbench status --results {folder} says how far it is, kvbench cancel --results {folder} ends it",
            file=sys.stderr,
        )
        return 0

    def _executor(self, work: Work) -> Any:
        try:
            import submitit
        except ModuleNotFoundError:
            raise UserError("launcher=slurm needs submitit: pip install 'kvbench[slurm]'") from None
        if shutil.which("sbatch") is None or shutil.which("srun") is None:
            raise UserError("launcher=slurm: no sbatch and srun on this machine; submit from a node that has them")
        executor = submitit.SlurmExecutor(work.results.path / LOGS, max_num_timeout=self.requeues)
        named = {
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
            time=self.time,
            array_parallelism=self.parallel,
            signal_delay_s=self.warning_seconds,
            setup=list(self.setup),
            additional_parameters=dict(self.extra),
            **{name: value for name, value in named.items() if value is not None},
        )
        return executor


class Requeued:
    """What a job calls: its task. submitit's own handler requeues the job at the time signal; while samples are made
    that waits until the current one is recorded (`kvbench.cli.signals`). SIGTERM requeues nothing: it comes from
    scancel, or from SLURM that will requeue by itself.
    """

    def __call__(self, task: Task) -> int:
        """Ends the process with the code of the task, unless that is 0."""
        code = task()
        if code:
            sys.exit(code)
        return code

    def checkpoint(self, task: Task) -> Any:
        """The same again: what is done is in the results folder."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, task)
