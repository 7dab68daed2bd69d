"""Arguments of `kvbench.Bench` as words of the command line; messages call them by their own names."""

from collections.abc import Mapping, Sequence
from typing import Any

from kvbench.config.entries import folders, is_kind, options
from kvbench.eviction.budget import parse_budget, parse_bytes
from kvbench.eviction.evict import Eviction
from kvbench.eviction.policy import Policy
from kvbench.eviction.scores.score import Score
from kvbench.notebook.words import SEVERAL, words_of
from kvbench.support.errors import UserError
from kvbench.support.text import closest

Method = str | Policy | Score | Eviction | tuple[str | Policy, str | Score]
"""A method: the name of a policy or of a score, an object of one, both as a pair, or an eviction with its budget."""
FORMS = (
    "the name of a policy or score, an object of Policy, Score or Eviction, or a pair (policy, score), such as "
    '("h2o", "attn")'
)
ELSEWHERE = {
    "budget": "budgets=",
    "score": "methods: (policy, score)",
    "model": "kvbench.Bench(model)",
    "task": "data=",
    "results.dir": "results=",
}
"""Settings of the command line that an argument stands for."""


def words_of_method(argument: str, method: Method, policy: str | Policy) -> tuple[str, ...]:
    """Return the words that choose a method; a score alone belongs to `policy`. argument: what messages call it.

    Raises UserError for what is no method.
    """
    if isinstance(method, str):
        settings = _named(argument, method, policy)
    elif isinstance(method, tuple) and len(method) == 2:
        settings = {"policy": method[0], "score": method[1]}
    elif isinstance(method, (Policy, Eviction)):
        settings = {"policy": method}
    elif is_kind("score", method if isinstance(method, type) else type(method)):
        settings = {"policy": policy, "score": method}
    else:
        raise UserError(f"{argument}={type(method).__name__}(...): allowed: {FORMS}")
    return tuple(words_of(settings))


def _named(argument: str, name: str, policy: str | Policy) -> Mapping[str, Any]:
    policies, scores = [*options("policy"), *folders("policy")], options("score")
    if name in policies:
        return {"policy": name}
    if name in scores or name.endswith(".py"):
        return {"policy": policy, "score": name}
    raise UserError(
        f"{argument}={name!r} is neither a policy nor a score: {closest(name, dict.fromkeys([*policies, *scores]))}"
    )


def words_of_budgets(budgets: Any) -> list[str]:
    """Return the word of one or several budgets. Raises UserError for what is no budget."""
    several = list(budgets) if isinstance(budgets, SEVERAL) else [budgets]
    for number, budget in enumerate(several):
        try:
            if parse_bytes(str(budget)) is None:
                parse_budget(str(budget))
        except ValueError:
            raise UserError(
                f"budgets[{number}]={budget!r}: allowed: a share of the prompt such as 0.1, a number of KV pairs such "
                'as 128, or the bytes of a prompt such as "600KiB"'
            ) from None
    if not several:
        raise UserError("budgets=[]: give at least one, such as budgets=[0.1]")
    return words_of({"budget": several})


def check_settings(settings: Mapping[str, Any]) -> None:
    """Raise UserError for a setting that an argument stands for."""
    for name in settings:
        if name in ELSEWHERE:
            raise UserError(f"compare() has no argument {name!r}: give it as {ELSEWHERE[name]}")


def listed(methods: Method | Sequence[Method]) -> list[Method]:
    """Methods as a list, one alone too. Raises UserError for none."""
    several = list(methods) if isinstance(methods, list) else [methods]
    if not several:
        raise UserError(f"methods=[]: give at least one: {FORMS}")
    return several  # type: ignore[return-value]
