"""A cell: one model, task, policy, score, budget and schedule, and the hash that names it.

A cell is named by a hash of its description, defaults included and the number of samples left out: a run with more
samples continues where the last one stopped. Only checks of cells that evict here import torch: those that a server
answers do without.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from kvbench.eviction.budget import Budget, TokenBudget
from kvbench.eviction.schedule import Schedule
from kvbench.models.loading.spec import ModelSpec, has_chat_template, template_arguments
from kvbench.records.labels import PAPER, variant_of
from kvbench.records.row import HIGHER, LOWER
from kvbench.run.code import Code, code_of_cell
from kvbench.support.errors import MissingFile, UserError
from kvbench.support.facts import Claim, check
from kvbench.support.plugins import foreign
from kvbench.tasks.task import Task

if TYPE_CHECKING:
    from kvbench.eviction.policy import Policy
    from kvbench.eviction.scores.score import Score
    from kvbench.models.decode.holder import Holder

Description = dict[str, Any]


def describe(part: Any) -> Description:
    """Return the name of a score, task or probe and its fields; never where its class lives, so that files can move."""
    return {"name": part.name} | asdict(part)


def describe_task(task: Task) -> Description:
    """Return a task without its number of samples and the folder of its data; the hash of its data is included."""
    parts = describe(task).items()
    description = {name: value for name, value in parts if name not in task.left_out}
    return description | task.identity() | {"version": task.version}


@lru_cache
def describe_model(spec: ModelSpec) -> Description:
    """Return a model by the bytes of its files rather than its path: a folder that moves keeps its rows.

    Arguments of a chat template are named where there are some.
    """
    description = {name: value for name, value in asdict(spec).items() if name not in spec.left_out}
    description["kernels"] = spec.kernels or "torch"  # the default may run others on a GPU, as the environment says
    if arguments := template_arguments(spec):
        description["template_kwargs"] = arguments
    return description | {"sha256": spec.sha256(), "chat_template": has_chat_template(spec.folder())}


def check_model_unchanged(spec: ModelSpec, named: str) -> None:
    """Raise MissingFile if a model that was just read no longer has the hash that its cells are named by."""
    if spec.sha256() != named:
        raise MissingFile(
            f"a file of the model {spec.label} has changed while it was read: rows of what is in it now belong to "
            "other cells; run the same command again"
        )


def canonical(description: Any) -> str:
    """Return JSON with sorted names and no spaces."""
    return json.dumps(description, sort_keys=True, separators=(",", ":"))


def digest(text: str) -> str:
    """Return sixteen hex digits of the SHA-256 of a canonical text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Cell:
    """One model, task, policy, score, budget and schedule. The labels are the row columns `policy` and `score`.

    protocol: the one that the policy has its settings by, before those that its label names; None of a server's.

    holder: what holds the kept pairs, and what a query reads of them; None: a copy, all of it.
    """

    model: ModelSpec
    task: Task
    policy: "Policy"
    score: "Score"
    budget: Budget
    schedule: Schedule
    seed: int
    policy_label: str
    score_label: str | None
    holder: "Holder | None" = None
    protocol: str | None = PAPER

    @cached_property
    def description(self) -> Description:
        """Everything that the cell's numbers depend on, as JSON. A copy of the pairs, all of which is read, is not
        named, nor is code of our own.
        """
        policy = {"positions": "original"} | asdict(replace(self.policy, steps=()))  # the ids of rows are made of it
        del policy["steps"]
        for step in self.policy.steps:
            policy |= step.described()
        description = {
            "model": describe_model(self.model),
            "task": describe_task(self.task),
            "policy": policy,
            "score": describe(self.score),
            "budget": str(self.budget),
            "schedule": asdict(self.schedule),
            "seed": self.seed,
        }
        plugins = self._evicting_plugins
        for name, code in foreign(self.holder).items():
            plugins[name if plugins.get(name, code) == code else f"{self.held.group} {name}"] = code
        if plugins:
            description["plugins"] = plugins
        return description | self._described_holder

    @property
    def _described_holder(self) -> Description:
        return dict(self.holder.described()) if self.holder else {}

    @cached_property
    def held(self) -> "Holder":
        """The holder of its kept pairs: `holder`, or the one that steps ask for."""
        from kvbench.models.decode.holder import Holder

        holder = self.holder or Holder()
        for step in self.policy.steps:
            holder = step.holder(holder)
        return holder

    @property
    def store(self) -> str:
        """How its kept pairs are stored: the row column."""
        return self.held.store

    @property
    def _evicting_plugins(self) -> dict[str, dict[str, str]]:
        """Code of others that decides what is read and kept, as `foreign` names it."""
        return foreign(self.task) | foreign(self.policy) | foreign(self.score)

    @property
    def variant(self) -> str | None:
        """The side of its paper or code that the policy is on: the row column; None if it is on neither."""
        return variant_of(self.policy_label, self.policy.variant)

    @cached_property
    def id(self) -> str:
        """Sixteen hex digits of the SHA-256 of the canonical description."""
        return digest(canonical(self.description))

    @cached_property
    def code(self) -> Code:
        """The code that makes its numbers, as it is when it is asked for first."""
        return code_of_cell(self.policy, self.score, self.task, self.holder)

    @cached_property
    def prefill_key(self) -> str:
        """Return what cells must have in common to share a prefill, as canonical JSON.

        That is everything but the holder if eviction happens during the prefill; of texts, whose caches grow side by
        side, the blocks.
        """
        reading: dict[str, object] = {"evict_after": self.schedule.evict_after}
        if self.schedule.prefill_block is not None:
            if not self.task.scores_text:
                left_out = {"plugins", *self._described_holder}
                parts = {name: part for name, part in self.description.items() if name not in left_out}
                return canonical(parts | {"plugins": self._evicting_plugins})
            reading |= {"prefill_block": self.schedule.prefill_block}
        if self.score.inputs.hidden_states == "prompt":  # read in one pass, which changes the last bits
            reading["hidden_states"] = "prompt"
        return canonical({"model": self.description["model"], "task": self.description["task"], "schedule": reading})

    @property
    def weights(self) -> str:
        """A hash of what the model's weights are: its files, or the dimensions and seed of a random one."""
        model = self.description["model"]
        if model["shape"] is None:
            return model["sha256"]
        return digest(canonical({key: model[key] for key in ("sha256", "shape")}))

    def job_number(self, sample: int) -> int:
        """Return a number that samples have in common if one prefill serves them."""
        return self.task.job_number(sample, self.schedule.evict_after)

    @property
    def has_full_cache(self) -> bool:
        """Whether `policy=full` is its reference."""
        return self.task.has_full_cache(self.schedule.prefill_block is not None)

    def check(self) -> None:
        """Raise ValueError for a score that the policy cannot host, or a budget below the protected tokens."""
        from kvbench.eviction.evict import check_host, too_small
        from kvbench.eviction.incremental import check_answer_budget, check_steps

        check_host(self.policy, self.score)
        if self.task.better not in (HIGHER, LOWER):
            raise UserError(
                f"task {self.task.name}: better={self.task.better!r} of its metric: allowed: {HIGHER}, {LOWER}"
            )
        if self.policy.budget_span == "context" and self.policy.sink == 0:
            raise UserError(
                f"policy.budget_span=context keeps the first tokens in addition to the budget, but {self.policy.name} "
                "has policy.sink=0: add policy.sink=head, or use policy.budget_span=prompt"
            )
        if isinstance(self.budget, TokenBudget) and self.budget.pairs < self.policy.budgeted:
            raise UserError(too_small(self.policy, f"budget={self.budget.counted}"))
        if isinstance(self.budget, TokenBudget):
            for step in self.policy.steps:
                step.check_budget(self.policy, self.budget)
        check(self.claims())
        if self.task.scores_text and "budget" in self.policy.accepts:
            self._check_reading()
        if self.schedule.steps and not self.task.scores_text:
            check_steps(self.policy, self.score, blocks=self.schedule.prefill_block is not None)
            if self.schedule.answer_budget is not None:
                check_answer_budget(self.policy.decoding, self.schedule.answer_budget)

    def claims(self) -> Iterator[Claim]:
        """Return what its parts need of each other, and what they make untrue."""
        yield from self.policy.claims()
        yield from self.score.claims()
        if self.holder is not None:
            yield from self.holder.claims()
        for part in (self.task, self.schedule, self.budget):
            yield from part.claims()

    def _check_reading(self) -> None:
        """Refuse settings with which a text cannot be evicted from while it is read."""
        from kvbench.eviction.incremental import check_steps

        check_steps(self.policy, self.score, blocks=True)
        least = self.policy.budgeted + self.task.spare_pairs
        if isinstance(self.budget, TokenBudget) and self.budget.pairs < least:
            raise UserError(
                f"budget={self.budget.counted}: with task.evict=before the cache holds one KV pair fewer: "
                f"use budget >= {least}"
            )
