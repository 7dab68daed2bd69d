"""The code that a cell executes, by parts: what a row names, so that two versions of the code are never one mean."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

from kvbench.records.environment import environment_id
from kvbench.records.row import NO_SOURCE
from kvbench.support.plugins import OURS, parts_of
from kvbench.support.syntax import NoSource, closure, code_sha256, modules_in
from kvbench.tasks.task import Task

if TYPE_CHECKING:
    from kvbench.eviction.policy import Policy
    from kvbench.eviction.scores.score import Score
    from kvbench.models.decode.holder import Holder

SCORES, EXTRAS, TASKS = "kvbench.eviction.scores.", "kvbench.extras.", "kvbench.tasks."
PROMPT, CONVERSATIONS = "kvbench.run.prefill_job", "kvbench.run.conversations"
ANSWERING = {"kvbench.run.answers": ("run", (PROMPT,)), CONVERSATIONS: ("run conversations", (PROMPT, CONVERSATIONS))}
"""The part and the modules of procedures that share what answers a prompt; asking several at a time changes no bit."""
EXECUTED = ("kvbench.cache.", "kvbench.eviction.", EXTRAS, "kvbench.models.", TASKS)
"""Packages whose functions count where another part imports them; the functions of others write words."""


@dataclass(frozen=True)
class Code:
    """Hashes of the code of a cell by part: cache, eviction, engine, run, score, steps, holder, task and plugins.

    None: a source cannot be read.
    """

    parts: Mapping[str, str] | None

    @cached_property
    def id(self) -> str:
        """Twelve hex digits, or `NO_SOURCE`: the row's ``code``."""
        return NO_SOURCE if self.parts is None else environment_id(self.parts)


def code_of_cell(policy: "Policy", score: "Score", task: Task, holder: "Holder | None" = None) -> Code:
    """Return the code of a cell. A score, step or holder counts with what it imports of others, a task with its metric.

    Parts of different files have different names: two hashes of one name are two versions of it.
    """
    module = task.procedure.partition(":")[0]
    run, procedure = ANSWERING.get(module, (f"run {module.rpartition('.')[2]}", (module,)))
    components: dict[str, tuple[Any, str | tuple[str, ...]]] = {f"task {task.name}": (task, (TASKS, EXTRAS))}
    if "budget" in policy.accepts:
        own, scores = replace(policy, steps=()), (SCORES, EXTRAS)
        components |= {f"score {score.name}": (score, scores), f"policy {policy.name}": (own, scores)}
    components |= {f"step {type(step).__name__.lower()}": (step, EXTRAS) for step in policy.steps}
    for part in (holder,) if holder else ():
        components[f"{part.group} {getattr(part, 'name', '')}"] = (part, EXTRAS)
    try:
        parts = {run: _sha256((*procedure, "kvbench.run.evict_cell"))}
        parts |= {name: package_sha256(f"{OURS}.{name}") for name in ("cache", "eviction", "models")}
        for name, (component, within) in components.items():
            if modules := frozenset(modules_of(component, within)):
                others = sorted({module.rpartition(".")[2] for module in modules - {type(component).__module__}})
                parts[f"{name} with {', '.join(others)}" if others else name] = component_sha256(modules, within)
    except NoSource:
        return Code(None)
    return Code(parts)


def modules_of(component: Any, within: str | tuple[str, ...]) -> Iterator[str]:
    """Yield the modules that define a component and its parts: in the packages `within`, and in plugins."""
    for part in parts_of(component):
        module = type(part).__module__
        if module.startswith(within) or module.partition(".")[0] not in (OURS, "builtins"):
            yield module
        if named := getattr(part, "turn_divider", ""):
            yield named.partition(":")[0]


@cache
def component_sha256(modules: frozenset[str], within: str | tuple[str, ...]) -> str:
    """Return the hash of the modules of a component, with what they import of the same packages."""
    packages = {module: within if module.startswith(within) else module.partition(".")[0] + "." for module in modules}
    return _sha256(tuple(set[str]().union(*(closure([module], package) for module, package in packages.items()))))


@cache
def package_sha256(name: str) -> str:
    """Return the hash of a package, of eviction without its scores."""
    return _sha256(tuple(module for module in modules_in(name) if not module.startswith(SCORES[:-1])))


@cache
def _sha256(modules: tuple[str, ...]) -> str:
    return code_sha256(modules, EXECUTED)
