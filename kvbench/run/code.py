"""The code that a cell executes, by parts: what a row names, so that two versions of the code are never one mean."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from kvbench.records.environment import environment_id
from kvbench.records.row import NO_SOURCE
from kvbench.support.named import named
from kvbench.support.plugins import OURS, parts_of
from kvbench.support.syntax import closure, code_sha256, modules_in

SCORES, EXTRAS, TASKS = "kvbench.eviction.scores.", "kvbench.extras.", "kvbench.tasks."
EXECUTED = ("kvbench.cache.", "kvbench.eviction.", EXTRAS, "kvbench.models.", TASKS)
"""Packages whose functions count where another part imports them; the functions of others write words."""


@dataclass(frozen=True)
class Code:
    """Hashes of the code of a cell by part: packages, decoding, score, steps, holder, task and plugins.

    None: a source cannot be read.
    """

    parts: Mapping[str, str] | None

    @cached_property
    def id(self) -> str:
        """Twelve hex digits, or `NO_SOURCE`: the row's ``code``."""
        return NO_SOURCE if self.parts is None else environment_id(self.parts)


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
    return modules_sha256(tuple(set[str]().union(*(closure([name], package) for name, package in packages.items()))))


@cache
def decoding_sha256s() -> Mapping[str, str]:
    """Return the hash of each member of the group `decoding`, by which GPUs decode, and of extras that it imports."""
    modules = {name: extra.target.rpartition(".")[0] for name, extra in named("decoding").items()}
    return {f"decoding {name}": component_sha256(frozenset([module]), EXTRAS) for name, module in modules.items()}


@cache
def package_sha256(name: str) -> str:
    """Return the hash of a package, of eviction without its scores."""
    return modules_sha256(tuple(module for module in modules_in(name) if not module.startswith(SCORES[:-1])))


@cache
def modules_sha256(modules: tuple[str, ...]) -> str:
    """Return the hash of modules, with the functions that they import of `EXECUTED`."""
    return code_sha256(modules, EXECUTED)
