"""The cells of a sweep from composed trees: what several of them share is checked and built once."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from kvbench.config.compose import ARGUMENTS, resolved
from kvbench.config.entries import MISSING, Tree, usual_settings
from kvbench.config.overrides import Override, format_value
from kvbench.config.protocol import protocols
from kvbench.config.settings import build, label
from kvbench.config.validation import validated
from kvbench.eviction.budget import Budget, ByteBudget, TokenBudget, parse_budget, parse_bytes
from kvbench.eviction.schedule import Schedule
from kvbench.records.labels import PAPER
from kvbench.run.cell import Cell
from kvbench.run.eviction_method import EvictionMethod
from kvbench.run.settings import Data, Reference, Results
from kvbench.support.errors import UserError
from kvbench.support.facts import check
from kvbench.support.plugins import groups, held_groups

if TYPE_CHECKING:
    from kvbench.eviction.policy import Layout, Policy
    from kvbench.models.decode.holder import Holder
    from kvbench.models.loading.spec import ModelSpec

OF_EVICTION = ("policy", "score", *held_groups(), "budget", "schedule", "protocol")
"""Settings of cells that evict here."""


class CellBuilder:
    """Builds the cells of trees, and remembers their parts by the text of all that they are made of.

    Cells with equal parts share them, which makes their hashes cheap too. token_bytes: the bytes that a token takes in
    the layers that are evicted from, of a model and a layout; by default `kvbench.run.memory.token_bytes`.
    """

    def __init__(self, token_bytes: "Callable[[ModelSpec, Layout], int] | None" = None) -> None:
        self._parts: dict[tuple[Any, ...], Any] = {}
        self._token_bytes = token_bytes

    def cell(self, tree: Tree) -> Cell:
        """Return the cell of a tree. Raises UserError for the first value that is not allowed."""
        tree = resolved(tree)
        self._once(validated, Data, "data", tree["data"])
        self._once(validated, Reference, "reference", tree["reference"])
        seed = self._once(validated, int, "seed", tree["seed"])
        model, task = (self._once(build, group, tree[group]) for group in ("model", "task"))
        if own := own_part(tree):
            return Cell(model, task, self._once(build, own, tree[own]), Schedule(), seed)
        policy = self._once(build, "policy", tree["policy"])
        score = self._once(build, "score", tree["score"])
        built = {group: self._once(build, group, tree[group]) for group in held_groups()}
        named = {group: holder for group, holder in built.items() if not holder.idle}
        holding = [holder for holder in (model.holder, *named.values()) if holder is not None]
        check(claim for holder in holding for claim in holder.claims())
        holder = next(iter(holding), None)
        evicts = "budget" in policy.accepts  # a policy that keeps everything never evicts again
        protocol = self._once(_protocol, tree["policy"], tree["protocol"])
        held = "".join(f" {self._label(group, tree)}" for group in named)
        budget: Budget | ByteBudget = self._once(_budget, tree["budget"] if evicts else "1.0")
        budget = self._counted(budget, model, policy, holder) if isinstance(budget, ByteBudget) else budget
        method = EvictionMethod(
            policy=policy,
            score=score.of_budget(TokenBudget(budget.pairs) if isinstance(budget, TokenBudget) else budget),
            budget=budget,
            policy_label=self._label("policy", tree, protocol) + held,
            score_label=self._label("score", tree) if "score" in policy.accepts else None,
            holder=holder,
            protocol=protocol,
        )
        return Cell(model, task, method, self._once(_schedule, tree["schedule"], evicts), seed)

    def results(self, tree: Tree) -> Results:
        """Return where rows of a tree go. Raises UserError for what is no folder and no detail."""
        return self._once(validated, Results, "results", resolved(tree, "results"))

    def _counted(
        self, budget: ByteBudget, model: "ModelSpec", policy: "Policy", holder: "Holder | None"
    ) -> TokenBudget:
        """Return a budget in bytes as KV pairs of a model. Raises UserError for less than one, and for quantized
        pairs.
        """
        from kvbench.run.memory import token_bytes

        check((*budget.claims(), *(holder.claims() if holder else ()), *policy.claims()))
        return budget.tokens((self._token_bytes or token_bytes)(model, policy.layout))

    def _label(self, group: str, tree: Tree, protocol: str = PAPER) -> str:
        """Return the name of a policy or score and what differs from its file, or from the protocol that it then
        names.
        """
        file = self._once(usual_settings, group, tree[group]["name"], tree[group]["_target_"])
        if protocol != PAPER:
            file = protocols()[protocol].over(file)
        left_open = {
            key: tree[group][key] for key, value in file.items() if value == MISSING or f"{group}.{key}" == ARGUMENTS
        }
        usual = resolved({**tree, group: file | left_open}, group)
        text = self._once(label, group, tree[group], usual, left_open)
        name = tree[group]["name"]
        return text if protocol == PAPER else f"{name}@{protocol}{text.removeprefix(name)}"

    def _once(self, make: Callable[..., Any], *arguments: Any) -> Any:
        key = (make, repr(arguments))
        if key not in self._parts:
            self._parts[key] = make(*arguments)
        return self._parts[key]


def _protocol(policy: Tree, protocol: str) -> str:
    """Return the protocol of a policy: `paper` where another one changes nothing that the policy's file says."""
    file = usual_settings("policy", policy["name"], policy["_target_"])
    return protocol if protocols()[protocol].over(file) != file else PAPER


def own_part(tree: Tree) -> str | None:
    """Return the part that the file of a model brings beside the groups, such as how a server is asked; None for none.

    Such a part is the method of the cell, a `kvbench.run.cell.Method`: nothing is evicted here.
    """
    known, parts = groups(), (name for name, node in tree.items() if isinstance(node, dict) and "_target_" in node)
    return next((name for name in parts if name not in known), None)


def refuse_eviction(overrides: Iterable[Override], trees: Iterable[Tree]) -> None:
    """Raise UserError for settings of eviction where nothing is evicted here."""
    if own := next(filter(None, map(own_part, trees)), None):
        for override in overrides:
            if override.root in OF_EVICTION:
                raise UserError(
                    f"{override.text}: a model with settings {own}.* evicts by itself: name its method and budget by "
                    "them, and run other models in another command"
                )


def _budget(value: Any) -> Budget | ByteBudget:
    is_number = isinstance(value, (str, int, float)) and not isinstance(value, bool)
    budget = parse_bytes(value) or parse_budget(value if is_number else format_value(value))
    if (isinstance(budget, TokenBudget) and budget.pairs >= 2**63) or (
        isinstance(budget, ByteBudget) and budget.number >= 2**63
    ):
        raise UserError(
            f"budget={value}: allowed: a fraction of the prompt, or a number of KV pairs or bytes below 2^63"
        )
    return budget


def _schedule(node: Any, evicts: bool) -> Schedule:
    schedule = validated(Schedule, "schedule", node)
    return schedule if evicts else schedule.once
