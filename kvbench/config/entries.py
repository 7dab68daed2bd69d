"""Names of groups and the settings that they stand for: a file of `conf` or of a plugin, a Python file, an object.

A file says what differs from the defaults of the class that its `_target_` names.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, get_type_hints

import yaml

from kvbench.config.given import class_in, fault_of, is_python_file, names_object, object_of, settings_of_object
from kvbench.support.errors import UserError
from kvbench.support.noted import REQUIRED, declared, defaults
from kvbench.support.plugins import NO_STEP, OURS, GroupItem, Source, groups, held_groups, items
from kvbench.support.settings_file import LOADER, entry_of
from kvbench.support.text import closest

Tree = dict[str, Any]
MISSING = REQUIRED
"""What a file writes for a setting that the command line must give."""
ALLOCATION = "allocation"
"""The group of files that name how a budget is divided."""
STEP = "step"
"""The group of files that add settings to policies (`kvbench.config.policy_parts`)."""
EVERY_TASK = "kvbench.tasks.task.TaskSettings"
"""The class of the settings that every task has."""
_GIVEN = Source("kvbench", "", "", Path())
"""Where Python files and objects are from, which no plugin brings."""
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
    try:
        member = getattr(import_module(module), attribute)
        if not (problem := fault_of(member)):
            return member
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


def options(group: str) -> list[str]:
    """Return names of a group's files, e.g. `ruler/niah_single_1` for tasks."""
    return list(items(group))


def folders(group: str) -> list[str]:
    """Names that stand for several files of a group: `ruler` for every task of RULER."""
    names = options(group)
    return sorted({name.rpartition("/")[0] for name in names if "/" in name} - set(names))


def find(group: str, word: str) -> GroupItem | None:
    """Return what a word of a command line names; None if the group has no such name.

    Raises UserError or MissingFile for a Python file that holds no class of the group, or one with a name of kvbench.
    """
    if names_object(word):
        value = object_of(word)
        return GroupItem(group, value.name, Path(word), _GIVEN) if is_object(group, value) else None
    if not is_python_file(word) or group not in ("score", *held_groups()):
        return items(group).get(word)
    path = Path(word).expanduser().resolve()
    name = getattr(class_of(group, {"_target_": word}), "name", path.stem)
    if (ours := items(group).get(name)) is not None:
        raise UserError(f"{word} names its {group} {name}, and {ours.source} has a {group} of that name: rename yours")
    return GroupItem(group, name, path, _GIVEN)


def content(item: GroupItem) -> Tree:
    """Return the settings of a name: of its group and of others that it changes, each over what its class declares.

    Raises UserError for a file that cannot be read or lacks what it must say, and as `class_of`. Never change the
    result.
    """
    if names_object(word := str(item.path)):
        return {item.group: settings_of_object(word)}
    node: Any = {"_target_": word, "name": item.name} if is_python_file(item.path.name) else _read(item)
    tree = node if isinstance(node, dict) and item.group in node else {item.group: node}
    own = tree[item.group]
    if not isinstance(own, dict) or not isinstance(own.get("_target_"), str):
        raise UserError(f"{item}: {item.path} names no class: add _target_: package.module.Class")
    if own.get("name") != item.name:
        raise UserError(f"{item}: {item.path} says name: {own.get('name')}, but must say name: {item.name}")
    return {key: _with_defaults(key, part) for key, part in tree.items()}


def origin(group: str, values: Mapping[str, Any], key: str) -> str:
    """Return the plugin and its file that state a setting, as the start of a message; nothing for what was typed."""
    item = items(group).get(str(values.get("name"))) if group in groups() else None
    if item is None or item.source.name == OURS:
        return ""
    node = _read(item)
    return f"{item}: {item.path}: " if key in node.get(group, node) else ""


class _Loader(LOADER):  # type: ignore[misc, valid-type]
    """Reads 1e-6 as a number too, as YAML 1.2 does."""


_Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"[-+]?\d[\d.]*[eE][-+]?\d+"), list("-+0123456789"))


@lru_cache(maxsize=2**10)
def parsed(text: str) -> Any:
    """Return the content of a settings file, read once. Raises YAMLError. The result is shared: never change it."""
    return yaml.load(text, _Loader)


def _read(item: GroupItem) -> Any:
    """Return what a file says, without the words about it."""
    try:
        node = parsed(item.path.read_text("utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{item}: {item.path} cannot be read: {' '.join(str(error).split())}") from None
    return entry_of(node, item.group, item.name).tree if isinstance(node, dict) else node


def _with_defaults(group: str, part: Any) -> Any:
    """Return a part that names a class over what the class declares; other settings as they are.

    A policy has the settings of steps too, or none if it keeps everything. What every task has is added when a run is
    composed, unless the class of a task has another default: that is its protocol.
    """
    if not isinstance(part, dict) or not isinstance(part.get("_target_"), str):
        return part
    usual = dict(defaults_of(group, part))
    if group == "policy":
        accepts = part.get("accepts", usual["accepts"])
        usual = step_settings() | usual if "budget" in accepts else {"accepts": accepts}
    elif group == "task":
        every = declared(EVERY_TASK)
        usual = {key: value for key, value in usual.items() if key not in every or value != every[key]}
    first = {key: part[key] for key in ("_target_", "name") if key in part}
    return first | usual | part


def load_entry(group: str, name: str) -> Tree:
    """Return the settings of a name of a group. Raises UserError for an unknown name, and as `content`."""
    item = find(group, name)
    if item is None:
        raise UserError(f"unknown {group} {name}: {closest(name, items(group))}")
    return content(item)[group]


def usual_settings(group: str, name: str, target: str) -> Tree:
    """Return the settings of a part before a command line changes them: of an object the defaults of its class.

    name, target: of the part.

    Raises UserError for an object that has the name of another class of kvbench.
    """
    if is_python_file(target) or not names_object(target):
        return load_entry(group, target if is_python_file(target) else name)
    kind = type(object_of(target))
    if name not in items(group):
        return {"_target_": target, **defaults(kind), "name": name}
    if class_of(group, file := load_entry(group, name)) is not kind:
        label = f"{group}={kind.__name__}(...)"
        raise UserError(f"{label} is named {name}, as another {group} of kvbench is: rename yours")
    return file


def step_parts() -> list[str]:
    """Return the parts of a policy of which steps are kinds."""
    return sorted({name.rpartition("/")[0] for name in items(STEP) if "/" in name})


def parts_with_kinds() -> tuple[str, ...]:
    """Return the parts of a policy that have a kind, and fields that depend on it, by their full names."""
    return tuple(f"policy.{part}" for part in ("heads", "layers", *step_parts()))


def step_settings() -> Tree:
    """Return the settings that steps add to a policy, with their defaults."""
    added: Tree = dict.fromkeys(step_parts(), NO_STEP)
    for name, item in items(STEP).items():
        if "/" not in name:
            added |= {key: value for key, value in content(item)[STEP].items() if key not in ("_target_", "name")}
    return added


def flat(node: Tree, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every setting of a tree by its full name, a part before its own settings."""
    for key, value in node.items():
        yield f"{prefix}{key}", value
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
