"""How cells evict here: a policy, a score, a budget and a holder, and what they need of each other.

Only the checks import torch.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from kvbench.eviction.budget import Budget, TokenBudget
from kvbench.eviction.schedule import Schedule
from kvbench.records.labels import PAPER, variant_of
from kvbench.records.row import HIGHER, LOWER
from kvbench.run.code import (
    EXTRAS,
    SCORES,
    TASKS,
    Code,
    component_sha256,
    decoding_sha256s,
    modules_of,
    modules_sha256,
    package_sha256,
)
from kvbench.support.errors import UserError
from kvbench.support.facts import Claim, check
from kvbench.support.plugins import OURS, foreign
from kvbench.support.syntax import NoSource
from kvbench.tasks.task import Task

if TYPE_CHECKING:
    from kvbench.eviction.policy import Policy
    from kvbench.eviction.scores.score import Score
    from kvbench.models.decode.holder import Holder

PROMPT, CONVERSATIONS = "kvbench.run.prefill_job", "kvbench.run.conversations"
ANSWERING = {"kvbench.run.answers": ("run", (PROMPT,)), CONVERSATIONS: ("run conversations", (PROMPT, CONVERSATIONS))}
"""The part and the modules of procedures that share what answers a prompt; asking several at a time changes no bit."""


@dataclass(frozen=True)
class EvictionMethod:
    """The `kvbench.run.cell.Method` of cells that evict here. The labels are the row columns `policy` and `score`.

    holder: what holds the kept pairs, and what a query reads of them; None: a copy, all of it.

    protocol: the one that the policy has its settings by, before those that its label names.
    """

    policy: "Policy"
    score: "Score"
    budget: Budget
    policy_label: str
    score_label: str | None
    holder: "Holder | None" = None
    protocol: str = PAPER

    @property
    def columns(self) -> dict[str, Any]:
        return {
            "policy": self.policy_label,
            "score": self.score_label,
            "budget": str(self.budget),
            "variant": variant_of(self.policy_label, self.policy.variant),
            "protocol": self.protocol,
            "layout": self.policy.layout,
        }

    @cached_property
    def held(self) -> "Holder":
        """The holder of its kept pairs: `holder`, or the one that steps ask for."""
        from kvbench.models.decode.holder import Holder

        holder = self.holder or Holder()
        for step in self.policy.steps:
            holder = step.holder(holder)
        return holder

    @property
    def parts(self) -> tuple[Any, ...]:
        """Parts whose code others may write, but for the holder."""
        return (self.score, *self.score.recorded, self.policy.layers, *self.policy.steps)

    def described(self, task: Task, schedule: Schedule) -> dict[str, Any]:
        """Name no copy of the pairs, all of which is read, and no code of our own."""
        plugins = self._plugins(task)
        for name, code in foreign(self.holder).items():
            plugins[name if plugins.get(name, code) == code else f"{self.held.group} {name}"] = code
        named = {"plugins": plugins} if plugins else {}
        return self._described(schedule) | named | (dict(self.holder.described()) if self.holder else {})

    def _described(self, schedule: Schedule) -> dict[str, Any]:
        """Return what decides which pairs are kept."""
        policy = {"positions": "original"} | asdict(replace(self.policy, steps=()))  # the ids of rows are made of it
        del policy["steps"]
        for step in self.policy.steps:
            policy |= step.described()
        score = {"name": self.score.name} | asdict(self.score)  # type: ignore[call-overload]
        return {"policy": policy, "score": score, "budget": str(self.budget), "schedule": asdict(schedule)}

    def _plugins(self, task: Task) -> dict[str, dict[str, str]]:
        """Return the code of others that decides what is read and kept, as `foreign` names it."""
        return foreign(task) | foreign(self.policy) | foreign(self.score)

    def prefill_part(self, task: Task, schedule: Schedule, seed: int) -> dict[str, Any]:
        """Return all but the holder if pairs are evicted during the prefill; of texts, whose caches grow side by side,
        the blocks.
        """
        reading: dict[str, object] = {"evict_after": schedule.evict_after}
        if schedule.prefill_block is not None:
            if not task.scores_text:
                return self._described(schedule) | {"seed": seed, "plugins": self._plugins(task)}
            reading |= {"prefill_block": schedule.prefill_block}
        if self.score.inputs.hidden_states == "prompt":  # read in one pass, which changes the last bits
            reading["hidden_states"] = "prompt"
        return {"schedule": reading}

    def code(self, task: Task) -> Code:
        """Return the code by parts. A score, step or holder counts with what it imports of others, a task with its
        metric.

        Parts of different files have different names: two hashes of one name are two versions of it.
        """
        policy, score, module = self.policy, self.score, task.procedure.partition(":")[0]
        run, procedure = ANSWERING.get(module, (f"run {module.rpartition('.')[2]}", (module,)))
        components: dict[str, tuple[Any, str | tuple[str, ...]]] = {f"task {task.name}": (task, (TASKS, EXTRAS))}
        if "budget" in policy.accepts:
            own, scores = replace(policy, steps=()), (SCORES, EXTRAS)
            components |= {f"score {score.name}": (score, scores), f"policy {policy.name}": (own, scores)}
        components |= {f"step {type(step).__name__.lower()}": (step, EXTRAS) for step in policy.steps}
        if self.holder is not None:
            components[f"{self.holder.group} {getattr(self.holder, 'name', '')}"] = (self.holder, EXTRAS)
        try:
            parts = {run: modules_sha256((*procedure, "kvbench.run.evict_cell"))}
            parts |= {name: package_sha256(f"{OURS}.{name}") for name in ("cache", "eviction", "models")}
            parts |= decoding_sha256s()
            for name, (component, within) in components.items():
                if modules := frozenset(modules_of(component, within)):
                    others = sorted({module.rpartition(".")[2] for module in modules - {type(component).__module__}})
                    parts[f"{name} with {', '.join(others)}" if others else name] = component_sha256(modules, within)
        except NoSource:
            return Code(None)
        return Code(parts)

    def job_number(self, task: Task, schedule: Schedule, sample: int) -> int:
        return task.job_number(sample, schedule.evict_after)

    def claims(self, task: Task, schedule: Schedule) -> Iterator[Claim]:
        yield from self.policy.claims()
        yield from self.score.claims()
        if self.holder is not None:
            yield from self.holder.claims()
        for part in (task, schedule, self.budget):
            yield from part.claims()

    def check(self, task: Task, schedule: Schedule) -> None:
        """Raise ValueError for a score that the policy cannot host, or a budget below the protected tokens."""
        from kvbench.eviction.evict import check_host, too_small
        from kvbench.eviction.incremental import check_answer_budget, check_steps

        check_host(self.policy, self.score)
        if task.better not in (HIGHER, LOWER):
            raise UserError(f"task {task.name}: better={task.better!r} of its metric: allowed: {HIGHER}, {LOWER}")
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
        check(self.claims(task, schedule))
        if task.scores_text and "budget" in self.policy.accepts:  # evicted from while it is read
            check_steps(self.policy, self.score, blocks=True)
            least = self.policy.budgeted + task.spare_pairs
            if isinstance(self.budget, TokenBudget) and self.budget.pairs < least:
                raise UserError(
                    f"budget={self.budget.counted}: with task.evict=before the cache holds one KV pair fewer: "
                    f"use budget >= {least}"
                )
        if schedule.steps and not task.scores_text:
            check_steps(self.policy, self.score, blocks=schedule.prefill_block is not None)
            if schedule.answer_budget is not None:
                check_answer_budget(self.policy.decoding, schedule.answer_budget)
