"""The class of a part: what members of each group derive from, and what a `_target_` names, with its defaults."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any, get_type_hints

from kvbench.config.objects import names_object, object_of
from kvbench.config.python_file import class_in, is_python_file
from kvbench.support.errors import UserError
from kvbench.support.noted import declared, defaults
from kvbench.support.plugins import groups, held_groups, items

HOLDER = "kvbench.models.decode.holder.Holder"
BASES = {
    "policy": "kvbench.eviction.policy.Policy",
    "score": "kvbench.eviction.scores.score.Score",
    "task": "kvbench.tasks.task.Task",
    "model": "kvbench.models.loading.spec.ModelSpec",
}
"""By name: a command about a server builds no policy, and imports no torch."""


def base_of(group: str) -> str | None:
    """Return the dotted name of the class that members of a group derive from; None where any class will do."""
    return HOLDER if group in held_groups() else BASES.get(group)


def is_kind(group: str, kind: type) -> bool:
    """Return whether a class is one of a group."""
    return base_of(group) in {f"{base.__module__}.{base.__qualname__}" for base in kind.__mro__}


def takes_objects(group: str) -> bool:
    """Return whether an object of Python can stand for a member of a group."""
    return group != "task" and base_of(group) is not None


def is_object(group: str, value: Any) -> bool:
    """Return whether a value is an object that can stand for a member of a group."""
    return takes_objects(group) and is_kind(group, type(value))


def class_of(group: str, node: Mapping[str, Any]) -> Any:
    """Return the dataclass that a part names: by its dotted name, its Python file, or the word of an object.

    Raises UserError, with the name of its plugin, if it does not load; MissingFile for no such file.
    """
    target = node["_target_"]
    if is_python_file(target):
        return class_in(target, group, str(base_of(group)))
    if names_object(target):
        return type(object_of(target))
    module, _, attribute = target.rpartition(".")
    problem = "is not a dataclass: make it one; its fields are the settings"
    try:
        found = getattr(import_module(module), attribute)
        if is_dataclass(found):
            return found
    except Exception as error:  # the code of a plugin may raise anything when it is imported
        problem = f"does not load: {type(error).__name__}: {' '.join(str(error).split())}"
    name = str(node.get("name", ""))
    item = items(group).get(name) if group in groups() else None
    raise UserError(f"{item or f'{group} {name}'.strip()}: {target} {problem}")


def defaults_of(group: str, node: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings that the class of a part declares, with their defaults; of ours without importing it.

    Raises as `class_of`. Never change the result.
    """
    try:
        return declared(node["_target_"])
    except LookupError:
        return defaults(class_of(group, node))


@lru_cache
def text_fields(target: Any) -> frozenset[str]:
    """Fields of a dataclass that are texts: what looks like a number there stays as it was written."""
    hints = get_type_hints(target)
    return frozenset(field.name for field in fields(target) if field.init and hints[field.name] in (str, str | None))
