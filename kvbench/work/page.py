"""The rows of a page: a paper's item, made here or by a launcher, and the command that makes them again."""

from collections.abc import Callable

from kvbench.config.sweep import Sweep
from kvbench.papers.work import Request, RowsElsewhere
from kvbench.records import Row
from kvbench.run.launch.local import Task
from kvbench.run.launch.slurm import active
from kvbench.run.plan import Shard
from kvbench.work.failures import ExitCode
from kvbench.work.sweep import RunOutput, make, rows_of


def rows_of_item(
    name: str, request: Request, sweep: Sweep, task: Callable[[Shard], Task], screen: RunOutput
) -> list[Row]:
    """Return all rows of an item; its launcher makes what is missing, in parts by `task`.

    Raises RowsElsewhere if that has not ended.
    """
    flags = {"--smoke": request.small, "--retry-errors": request.retry_errors}
    flags[f"--stale={request.stale}"] = request.stale != "stop"
    command = ("kvbench", "paper", name, *request.own_words, *(flag for flag, is_set in flags.items() if is_set))
    submits = sweep.launcher.submits and sweep.plan.rows_to_do
    if submits and (jobs := active(sweep.results, command)):
        raise RowsElsewhere(
            f"{name}: job {', '.join(jobs)} runs its rows; run this command again when the job has ended", ExitCode.OK
        )
    code, ended = make(sweep, command, task, screen)
    if not ended:
        again = "run the same command again when kvbench status shows that all rows are there"
        raise RowsElsewhere(f"{name}: {again}", code)
    return rows_of(sweep)
