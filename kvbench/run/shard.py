"""A shard of a plan, and which one a command line names: I/N, or what a scheduler gives its process (auto, auto/N)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from kvbench.run.plan import Plan
from kvbench.support.errors import UserError


@dataclass(frozen=True)
class Shard:
    """Shard `index` of `of`, counted from 0, of the prompts of every model; or of one model, by its place in the plan.

    The prompts of a shard depend on their numbers alone: not on what is done, nor on other cells.
    """

    index: int
    of: int
    model: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.of:
            raise UserError(f"shard {self.index + 1}/{self.of}: allowed: 1/N to N/N")

    def part_of(self, plan: Plan) -> Plan:
        """Return the plan with the jobs of this shard only, and all cells: a plan describes the complete sweep."""
        models = list(dict.fromkeys(group.model for group in plan.groups))
        selected = models if self.model is None else [models[self.model]]
        return plan.with_jobs(
            lambda group: [job for job in group.jobs if group.model in selected and job.key % self.of == self.index]
        )


def shards_of(plan: Plan, number: int) -> list[Shard]:
    """Return the shards in which something is to do, if the samples of each model are divided into `number` shards."""
    models = dict.fromkeys(group.model for group in plan.groups)
    shards = (Shard(index, number, model) for model in range(len(models)) for index in range(number))
    return [shard for shard in shards if shard.part_of(plan).rows_to_do]


class _Scheduler(NamedTuple):
    """The variables of a scheduler with the number of a task, from 0, with the number of tasks and with the last."""

    index: str
    of: str | None = None
    last: str | None = None


SCHEDULERS = (
    _Scheduler("JOB_COMPLETION_INDEX"),  # Kubernetes, an Indexed Job, which does not tell its completions
    _Scheduler("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT", "SLURM_ARRAY_TASK_MAX"),
    _Scheduler("SKYPILOT_NODE_RANK", "SKYPILOT_NUM_NODES"),
)


def shard_of(text: str, environment: Mapping[str, str]) -> Shard:
    """Return the shard that `--shard TEXT` names.

    `environment` is looked at for auto alone: Kubernetes JOB_COMPLETION_INDEX, which needs auto/N, SLURM
    SLURM_ARRAY_TASK_ID and SLURM_ARRAY_TASK_COUNT, SkyPilot SKYPILOT_NODE_RANK and SKYPILOT_NUM_NODES.

    Raises UserError for another text, and where the variables are missing or not of tasks 0 to N-1.
    """
    index, _, of = text.partition("/")
    if text == "auto" or (index == "auto" and of.isdecimal() and int(of)):
        return _shard_of_scheduler(text, of, environment)
    if not (index.isdecimal() and of.isdecimal()):
        raise UserError(
            f"--shard {text}: allowed: I/N, such as 2/8 for the second of eight; or auto or auto/N, by the scheduler"
        )
    return Shard(int(index) - 1, int(of))


def _shard_of_scheduler(text: str, of: str, environment: Mapping[str, str]) -> Shard:
    """Return the shard of the only scheduler whose variables are set; `of`, if not empty, is the number of all."""
    variables = ", ".join(scheduler.index for scheduler in SCHEDULERS)
    set_here = [scheduler for scheduler in SCHEDULERS if scheduler.index in environment]
    if len(set_here) != 1:
        names = " and ".join(scheduler.index for scheduler in set_here) or f"none of {variables}"
        verb = "are" if len(set_here) > 1 else "is"
        raise UserError(f"--shard {text}: {names} {verb} set: name the shard as I/N, such as 2/8")
    (scheduler,) = set_here

    def number(name: str) -> int:
        value = environment.get(name, "")
        if not value.isdecimal():
            raise UserError(f"--shard {text}: {name}={value}: it must be a number from 0")
        return int(value)

    index = number(scheduler.index)
    if of:
        total = int(of)
    elif scheduler.of is None:
        raise UserError(f"--shard auto: {scheduler.index} does not say of how many: write auto/N, such as auto/8")
    else:
        total = number(scheduler.of)
        if scheduler.last and scheduler.last in environment and number(scheduler.last) != total - 1:
            last = f"{scheduler.last}={environment[scheduler.last]}"
            raise UserError(
                f"--shard auto: {last} of {total} tasks: number the tasks from 0 "
                f"(--array=0-{total - 1}), or write auto/N where this is a part of an array of N"
            )
    if not index < total:
        raise UserError(f"--shard {text}: {scheduler.index}={index}: allowed: 0 to {total - 1}; the first task is 0")
    return Shard(index, total)
