"""A cell: one model, task, method, schedule and seed, and the hash that names it.

A cell is named by a hash of its description, defaults included and the number of samples left out: a run with more
samples continues where the last one stopped.
"""

import hashlib
import json
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, cast

from kvbench.eviction.schedule import Schedule
from kvbench.models.loading.spec import ModelSpec, describe_model
from kvbench.run.code import Code
from kvbench.tasks.task import Task

if TYPE_CHECKING:
    from kvbench.eviction.budget import Budget
    from kvbench.eviction.policy import Policy
    from kvbench.eviction.scores.score import Score
    from kvbench.models.decode.holder import Holder
    from kvbench.run.eviction_method import EvictionMethod


def canonical(description: Any) -> str:
    """Return JSON with sorted names and no spaces."""
    return json.dumps(description, sort_keys=True, separators=(",", ":"))


def digest(text: str) -> str:
    """Return sixteen hex digits of the SHA-256 of a canonical text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Method(Protocol):
    """How pairs are evicted from the caches of a cell: here, by an `EvictionMethod`, or elsewhere.

    Its functions are given other parts of the cell.
    """

    @property
    def columns(self) -> dict[str, Any]:
        """The row columns that say what it is: policy, score, budget, variant, protocol and layout."""
        ...

    def described(self, task: Task, schedule: Schedule) -> dict[str, Any]:
        """Return what numbers depend on beside model, task and seed, as JSON."""
        ...

    def prefill_part(self, task: Task, schedule: Schedule, seed: int) -> dict[str, Any]:
        """Return what cells of a model and a task must have in common to share a prefill, as JSON."""
        ...

    def code(self, task: Task) -> Code:
        """Return the code that makes the numbers."""
        ...

    def job_number(self, task: Task, schedule: Schedule, sample: int) -> int:
        """Return a number that samples of one prefill job have in common."""
        ...

    def check(self, task: Task, schedule: Schedule) -> None:
        """Raise ValueError for a cell that cannot work on any sample."""
        ...


@dataclass(frozen=True)
class Cell:
    """One model, task, method, schedule and seed. `policy`, `score`, `budget` and `held` are parts of `eviction`."""

    model: ModelSpec
    task: Task
    method: Method
    schedule: Schedule
    seed: int

    @property
    def eviction(self) -> "EvictionMethod":
        """The method of a cell whose model runs here (`ModelSpec.runs_here`)."""
        return cast("EvictionMethod", self.method)

    @property
    def policy(self) -> "Policy":
        return self.eviction.policy

    @property
    def score(self) -> "Score":
        return self.eviction.score

    @property
    def budget(self) -> "Budget":
        return self.eviction.budget

    @property
    def held(self) -> "Holder":
        return self.eviction.held

    def with_method(self, **changes: Any) -> "Cell":
        """Return the cell with these fields of its `EvictionMethod` changed."""
        return replace(self, method=replace(self.eviction, **changes))

    @cached_property
    def description(self) -> dict[str, Any]:
        """Everything that the cell's numbers depend on, as JSON."""
        parts = {"model": describe_model(self.model), "task": self.task.described()}
        return parts | self.method.described(self.task, self.schedule) | {"seed": self.seed}

    @cached_property
    def id(self) -> str:
        """Sixteen hex digits of the SHA-256 of the canonical description."""
        return digest(canonical(self.description))

    @cached_property
    def code(self) -> Code:
        """The code that makes its numbers, as it is when it is asked for first."""
        return self.method.code(self.task)

    @cached_property
    def prefill_key(self) -> str:
        """The parts that cells must have in common to share a prefill, as canonical JSON."""
        parts = {name: self.description[name] for name in ("model", "task")}
        return canonical(parts | self.method.prefill_part(self.task, self.schedule, self.seed))

    @property
    def weights(self) -> str:
        """A hash of what the model's weights are: its files, or the dimensions and seed of a random one."""
        model = self.description["model"]
        if model["shape"] is None:
            return model["sha256"]
        return digest(canonical({key: model[key] for key in ("sha256", "shape")}))

    def job_number(self, sample: int) -> int:
        """Return a number that samples have in common if one prefill serves them."""
        return self.method.job_number(self.task, self.schedule, sample)

    @property
    def has_full_cache(self) -> bool:
        """Whether `policy=full` is its reference: not of a server, whose full cache is another server."""
        return self.model.runs_here and self.task.has_full_cache(self.schedule.prefill_block is not None)

    def check(self) -> None:
        """Raise ValueError if it cannot work on any sample."""
        self.method.check(self.task, self.schedule)
