"""The tasks that a launcher would submit for a sweep, before it does."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class SubmitRequest:
    """The tasks of a submission, and what each may use.

    shards: parts that the samples of each model are divided into, a task for each. parallel: tasks that run at the same
    time. gpus: of each task. time: the limit of a task as its setting says it; minutes: the same in minutes. requeues:
    how often a task may reach it. memory_gb: of the node of a task, None for the default of the cluster. script: what
    is submitted for so many tasks, as text.
    """

    shards: int
    parallel: int
    gpus: int
    time: int | str
    minutes: int
    requeues: int
    memory_gb: float | None
    script: Callable[[int], str]
