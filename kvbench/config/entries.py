"""What a name of a group stands for, as settings: a file of `conf` or of a plugin, a Python file, or an object.

A file says what differs from the defaults of the class that its `_target_` names.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from yaml import YAMLError

from kvbench.config.classes import class_of, defaults_of, is_object
from kvbench.config.objects import names_object, object_of, settings_of_object
from kvbench.config.python_file import is_python_file
from kvbench.support.errors import UserError
from kvbench.support.noted import REQUIRED, defaults
from kvbench.support.plugins import Item, Source, held_groups, items
from kvbench.support.settings_file import entry_of, parsed
from kvbench.support.text import closest

Tree = dict[str, Any]
MISSING = REQUIRED
"""What a file writes for a setting that the command line must give."""
ALLOCATION = "allocation"
"""The group of files that name how a budget is divided."""
STEP = "step"
"""The group of files that add settings to policies (`kvbench.config.policy_parts`)."""
NO_STEP = "drop"
"""The kind of a part that does nothing after selection."""


def options(group: str) -> list[str]:
    """Return names of a group's files, e.g. `ruler/niah_single_1` for tasks."""
    return list(items(group))


def folders(group: str) -> list[str]:
    """Names that stand for several files of a group: `ruler` for every task of RULER."""
    names = options(group)
    return sorted({name.rpartition("/")[0] for name in names if "/" in name} - set(names))


def find(group: str, word: str) -> Item | None:
    """Return what a word of a command line names; None if the group has no such name.

    Raises UserError or MissingFile for a Python file that holds no class of the group, or one with a name of kvbench.
    """
    if names_object(word):
        found = object_of(word)
        return Item(group, found.name, Path(word), _NO_SOURCE) if is_object(group, found) else None
    if not is_python_file(word) or group not in ("score", *held_groups()):
        return items(group).get(word)
    path = Path(word).expanduser().resolve()
    name = getattr(class_of(group, {"_target_": word}), "name", path.stem)
    if (ours := items(group).get(name)) is not None:
        raise UserError(f"{word} names its {group} {name}, and {ours.source} has a {group} of that name: rename yours")
    return Item(group, name, path, _NO_SOURCE)


_NO_SOURCE = Source("kvbench", "", "", Path())


def content(item: Item) -> Tree:
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


def _read(item: Item) -> Any:
    """Return what a file says, without the words about it."""
    try:
        node = parsed(item.path.read_text("utf-8"))
    except (YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{item}: {item.path} cannot be read: {' '.join(str(error).split())}") from None
    return entry_of(node, item.group, item.name).tree if isinstance(node, dict) else node


def _with_defaults(group: str, part: Any) -> Any:
    """Return a part that names a class over what the class declares; other settings as they are.

    A policy has the settings of steps too, or none if it keeps everything.
    """
    if not isinstance(part, dict) or not isinstance(part.get("_target_"), str):
        return part
    usual = dict(defaults_of(group, part))
    if group == "policy":
        accepts = part.get("accepts", usual["accepts"])
        usual = step_settings() | usual if "budget" in accepts else {"accepts": accepts}
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
