"""From group files and overrides to trees: one plain dict for each combination of the values that overrides list.

Defaults stand on classes (`RunSettings` and the class of each part), and files say what differs. `conf/run.yaml`
says which file of each group is used unless the command line names another. Each file is read once, merged in the
order of the defaults lists, and the command line's settings are put in. Trees are never changed in place.
"""

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from importlib import import_module
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, get_type_hints

from omegaconf import OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException
from yaml import YAMLError

from kvbench.config.loose_score import bases, class_in, is_python_file, loose_item, node_of
from kvbench.config.objects import item_of, names_object, node_of_object, object_of, usual_of
from kvbench.config.overrides import FIXED, GROUPS, Override, Value, format_value
from kvbench.config.protocol import protocols
from kvbench.config.synonyms import equivalent
from kvbench.support import paths
from kvbench.support.annotations import Help, annotated
from kvbench.support.errors import UserError
from kvbench.support.noted import REQUIRED, declared, defaults
from kvbench.support.plugins import Item, groups, held_groups, items
from kvbench.support.settings_file import entry_of
from kvbench.support.text import closest
from kvbench.tasks.task import TaskSettings

Tree = dict[str, Any]
MISSING = REQUIRED
"""What a file writes for a setting that the command line must give."""
MOST_COMBINATIONS = 100_000
"""Cells of a command: each is composed and held in memory."""
HOST = "score.host"
"""A part that is a score itself and is named like one."""
LENGTH = "task.context_length"
ARGUMENTS = "score.args"
"""Arguments of code of others: any name is a setting, and the score checks them."""
RUN = "kvbench.config.cells.RunSettings"
"""The class of the settings beside the groups."""
ALLOCATION = "allocation"
"""The group of files that name how a budget is divided."""
STEP = "step"
"""The group of files that add settings to policies (`kvbench.config.policy_parts`)."""
KINDS = ("policy.heads", "policy.layers")
"""Parts of every policy that have a kind, and fields that depend on it."""
NO_STEP = "drop"
"""The kind of a part that does nothing after selection."""
NULLABLE = {"policy.pool": "{kind:max,size:7}", "policy.phases": "{decode:{window:1}}"}
"""Parts that are null in some files, with a value that can be set."""
EXAMPLES = {
    "model.path": "FOLDER_OR_HUB_ID",
    "task.path": "FILE of JSON lines with context, question and answers; a task of rows reads a table or a data set",
    LENGTH: "4096 (tokens of a prompt of RULER and its answer, at most the model's longest sequence)",
}
"""What stands for the value of a setting of several classes that has no default; other classes say it on the field."""
PACKAGE = re.compile(r"^#\s*@package\s+(\S+)\s*$", re.MULTILINE)
ENTRY = re.compile(r"/?(?P<path>[\w./-]+)@_here_")
INTERPOLATION = re.compile(r"\$\{([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)\}")


def options(group: str) -> list[str]:
    """Return names of a group's files, e.g. `ruler/niah_single_1` for tasks."""
    return list(items(group))


def folders(group: str) -> list[str]:
    """Names that stand for several files of a group: `ruler` for every task of RULER."""
    names = options(group)
    return sorted({name.rpartition("/")[0] for name in names if "/" in name} - set(names))


def with_members(overrides: Sequence[Override]) -> list[Override]:
    """Return overrides; a folder of a group or a pattern is replaced by the names of the files it stands for."""

    def members(group: str, name: str) -> list[str]:
        pattern = f"{name}/*" if name in folders(group) else name
        return [option for option in options(group) if fnmatchcase(option, pattern)] or [name]

    return [
        replace(
            each, values=tuple(Value(name, name) for value in each.values for name in members(each.key, value.text))
        )
        if each.is_group
        else each
        for each in overrides
    ]


def load_entry(group: str, name: str, target: str = "") -> Tree:
    """Return the content of a name's file, not resolved; of a file that fills more than its group, the group's part.

    target: the `_target_`, which for a class in a file of its own is that file. Raises UserError for an
    unknown name, and for a file that cannot be read or lacks what it must say.
    """
    if is_python_file(target):
        return node_of(group, target)
    if names_object(target):
        if name not in items(group):
            return usual_of(target)
        if class_of(group, load_entry(group, name)) is not type(object_of(target)):
            label = f"{group}={type(object_of(target)).__name__}(...)"
            raise UserError(f"{label} is named {name}, as another {group} of kvbench is: rename yours")
    item = _item(group, name)
    if item is None:
        raise UserError(f"unknown {group} {name}: {closest(name, items(group))}")
    node = content(item)
    return _checked_file(item, node.get(group, node) if isinstance(node, dict) else node)


def _item(group: str, name: str) -> Item | None:
    """Return the file of a name, which of some groups may be a Python file; or an object that was given."""
    if names_object(name):
        return item_of(group, name)
    return loose_item(group, name) if group in bases() and is_python_file(name) else items(group).get(name)


def combinations(overrides: Sequence[Override], unused: set[str] | None = None) -> list[Tree]:
    """Return the trees of every combination of values; groups vary slowest.

    A policy that takes no score is composed with its own. A setting applies to the combinations that have it. Where
    `unused` is given, settings that no combination has are added to it. Raises UserError for names that no group has,
    and for settings that no combination has.
    """
    chosen = [override for override in with_members(overrides) if override.is_group]
    settings = [override for override in overrides if not override.is_group]
    settings.sort(key=lambda override: override.key.count("."))  # a part before its fields
    for override in chosen:
        for value in override.values:
            if _item(override.key, value.text) is None:
                names, others = [*options(override.key), *folders(override.key)], ""
                if override.key == "model" and not value.text.startswith("shape"):
                    names = [name for name in options("model") if not name.startswith("shape/")]
                    others = "; others: model=hf model.path=FOLDER_OR_HUB_ID; model=shape/NAME has random weights"
                named = equivalent(override.key, [value.text])
                fix = f"write {named}" if named else f"{closest(value.text, names)}{others}"
                raise UserError(f"unknown {override.key} {value.text}: {fix}")
    count = prod(len(override.values) for override in [*chosen, *settings])
    if count > MOST_COMBINATIONS:
        lists = (f"{len(each.values)} of {each.key}" for each in [*chosen, *settings] if len(each.values) > 1)
        raise UserError(
            f"{' x '.join(lists)} are {count} combinations, more than {MOST_COMBINATIONS}: name fewer values, and "
            "the others in another command"
        )
    names = product(*(override.values for override in chosen))
    bases = [
        composed({override.key: name.text for override, name in zip(chosen, values, strict=True)}) for values in names
    ]
    if not any(setting.key == LENGTH for setting in settings):
        bases = _with_shared_length(bases)
    trees: list[Tree] = []
    used = {"protocol"}
    protocols = [value.read for setting in settings if setting.key == "protocol" for value in setting.values]
    for base in bases:
        combined = [with_protocol(base, protocol) for protocol in protocols or [base["protocol"]]]
        for setting in settings:
            if setting.key == "protocol":
                continue
            has_setting = [_has(tree, setting.key) for tree in combined]
            if any(has_setting):
                used.add(setting.key)
            combined = [
                new
                for tree, has in zip(combined, has_setting, strict=True)
                for new in ([_with_value(tree, setting.key, value) for value in setting.values] if has else [tree])
            ]
        trees += combined
    idle = [setting for setting in settings if setting.key not in used]
    if unused is not None:
        unused.update(setting.key for setting in idle)
    elif idle:
        raise UserError(_unknown(idle[0], bases))
    return trees


def _with_shared_length(bases: Sequence[Tree]) -> list[Tree]:
    """Give tasks of `shared_length` the longest of the lengths that their files have, or none with another model."""
    has_shared_length = [getattr(class_of("task", base["task"]), "shared_length", False) for base in bases]
    lengths = {base["task"]["context_length"] for base, has in zip(bases, has_shared_length, strict=True) if has}
    return [
        _replaced(base, LENGTH.split("."), max(lengths) if _has_own_weights(base) else MISSING) if has else base
        for base, has in zip(bases, has_shared_length, strict=True)
    ]


def _has_own_weights(tree: Tree) -> bool:
    """Return whether the model of a tree is the embedded one or random."""
    return tree["model"].get("path") is None and tree["model"].get("pulled") is None


def with_protocol(tree: Tree, protocol: Any) -> Tree:
    """Return a tree whose policy is as its file says, under a protocol. Raises UserError for another one."""
    if not isinstance(protocol, str) or protocol not in protocols():
        raise UserError(f"protocol={format_value(protocol)}: allowed: {', '.join(protocols())}")
    return {**tree, "policy": protocols()[protocol].over(tree["policy"]), "protocol": protocol}


def resolved(tree: Tree, group: str | None = None) -> Tree:
    """Return a tree, or one group of it, without interpolations, the host of a score as its file describes it.

    Raises UserError for a host that is no score, a setting without a value, and an interpolation that leads nowhere.
    """
    tree = _with_host(tree)
    try:
        return _interpolated(tree[group] if group else tree, tree)
    except LookupError:
        pass  # OmegaConf knows the rest of the grammar, and what is wrong
    try:
        container: Any = OmegaConf.to_container(OmegaConf.create(tree), resolve=True, throw_on_missing=True)
        return container[group] if group else container
    except MissingMandatoryValue as error:
        part, _, name = (key := error.full_key or "a setting").partition(".")
        known = _examples(class_of(part, tree[part])) if "_target_" in tree.get(part, ()) else {}
        example = EXAMPLES.get(key) or known.get(name, Help.example)
        raise UserError(f"{key} has no default: add {key}={example} to the command") from None
    except OmegaConfBaseException as error:
        raise UserError(str(error).splitlines()[0]) from None


def _examples(target: type) -> dict[str, str]:
    """Return what stands for the values of the fields of a class."""
    return {
        name: note.example for name, hint in annotated(target) for note in hint.__metadata__ if isinstance(note, Help)
    }


def class_of(group: str, node: Tree) -> Any:
    """Return the dataclass that a part of a tree names. Raises UserError, with the name of its plugin, if it does not
    load.
    """
    if is_python_file(node["_target_"]):
        return class_in(node["_target_"], group)
    if names_object(node["_target_"]):
        return type(object_of(node["_target_"]))
    module, _, attribute = node["_target_"].rpartition(".")
    problem = "is not a dataclass: make it one; its fields are the settings"
    try:
        target = getattr(import_module(module), attribute)
        if is_dataclass(target):
            return target
    except Exception as error:  # the code of a plugin may raise anything when it is imported
        problem = f"does not load: {type(error).__name__}: {' '.join(str(error).split())}"
    name = str(node.get("name", ""))
    item = items(group).get(name) if group in groups() else None
    raise UserError(f"{item or f'{group} {name}'.strip()}: {node['_target_']} {problem}")


@lru_cache
def text_fields(target: Any) -> frozenset[str]:
    """Fields of a dataclass that are texts: what looks like a number there stays as it was written."""
    hints = get_type_hints(target)
    return frozenset(field.name for field in fields(target) if field.init and hints[field.name] in (str, str | None))


def is_open(node: Any) -> bool:
    """Return whether a part of a tree leaves a setting to the command line."""
    if isinstance(node, dict):
        return any(map(is_open, node.values()))
    return node == MISSING


def as_yaml(tree: Tree) -> str:
    """Write a tree as YAML, its interpolations replaced. Raises UserError for one of a name that there is not."""
    try:
        return OmegaConf.to_yaml(OmegaConf.create(tree), resolve=True)
    except OmegaConfBaseException as error:
        raise UserError(str(error).splitlines()[0]) from None


def _interpolated(node: Any, tree: Tree) -> Any:
    """Return a node with `${seed}` and its like replaced. Raises LookupError for whatever is not as simple as that."""
    if isinstance(node, dict):
        return {key: _interpolated(value, tree) for key, value in node.items()}
    if isinstance(node, list):
        return [_interpolated(value, tree) for value in node]
    if not isinstance(node, str) or (node != MISSING and "${" not in node):
        return node
    match = INTERPOLATION.fullmatch(node)
    if match is None:
        raise LookupError(node)
    value: Any = tree
    for name in match[1].split("."):
        value = value[name] if isinstance(value, dict) else {}[name]
    if isinstance(value, (dict, list)) or (isinstance(value, str) and ("${" in value or value == MISSING)):
        raise LookupError(node)
    return value


def composed(chosen: Mapping[str, str]) -> Tree:
    """Return files of a choice, merged: `run.yaml`, then one file of each group. Raises UserError for a bad file."""
    used: dict[str, Item] = {}
    tree = _merged(dict(declared(RUN)), paths.conf() / "run.yaml", None, chosen, used)
    for group, name in held_groups().items():
        file = _item(group, chosen.get(group, name))
        assert file is not None, "names of a command line are checked before"
        used[group] = file
        tree = _merged(tree, file.path, file, chosen, used)
    policy = used["policy"]
    for group in GROUPS:
        if group not in tree:
            raise UserError(f"{policy}: {policy.path} names no {group}: add defaults: [/{group}: NAME]")
        _checked_file(used[group], tree[group])
    if "score" in chosen and "score" not in tree["policy"]["accepts"]:
        return composed({group: name for group, name in chosen.items() if group != "score"})
    return {name: _of_every_task(node) | node if name == "task" else node for name, node in tree.items()}


def _of_every_task(node: Tree) -> Tree:
    """Return the settings that every task has, as the class of this one declares them."""
    usual = defaults_of("task", node)
    return {name: usual.get(name) for name in defaults(TaskSettings)}


def defaults_of(group: str, node: Tree) -> Mapping[str, Any]:
    """Return the settings that the class of a part declares, with their defaults; of ours without importing it.

    Raises UserError as `class_of`. Never change the result.
    """
    try:
        return declared(node["_target_"])
    except LookupError:
        return defaults(class_of(group, node))


def _merged(
    tree: Tree, path: Path, item: Item | None, chosen: Mapping[str, str], used: dict[str, Item], at: str | None = None
) -> Tree:
    """Return a tree with a file merged into it, and the files of its defaults list before it or where that says
    `_self_`.

    item: what the file is in its group; None for `run.yaml`. chosen: names of the command line, by group. used: is told
    the file that each group came to use. at: where the file's settings go; by default to its group, or where its line
    `# @package _global_` says.
    """
    file_label = str(item or path.name)
    node = content(item) if item else _settings_of(_read(path, path.name), "", "")
    if not isinstance(node, dict):
        raise UserError(f"{file_label}: {path} names no class: add _target_: package.module.Class")
    if at is None:
        package = None if names_object(str(path)) else PACKAGE.search(path.read_text("utf-8"))
        if package and package[1] not in ("_global_", "_group_"):
            raise UserError(f"{file_label}: {path}: # @package {package[1]}: allowed: _global_, _group_")
        at = "" if item is None or (package and package[1] == "_global_") else item.group
    settings = {key: value for key, value in node.items() if key != "defaults"}
    entries = node.get("defaults", [])
    for entry in entries if "_self_" in entries else [*entries, "_self_"]:
        if entry == "_self_":
            tree = _merge(tree, {at: settings} if at else settings)
            continue
        group, name, place = _entry(entry, f"{file_label}: {path}")
        if place is None:
            name = chosen.get(group, name)
        file = _item(group, name)
        if file is None:
            raise UserError(f"{file_label}: {path}: no {group} {name}: {closest(name, items(group))}")
        if file == item:
            raise UserError(f"{file_label}: {path} is in its own defaults list: remove it there")
        if place is None:
            used[group] = file
        tree = _merged(tree, file.path, file, chosen, used, at if place else None)
    return tree


def _entry(entry: Any, file_label: str) -> tuple[str, str, str | None]:
    """Group, name and place of an entry of a defaults list; the place is None unless it says `@_here_`."""
    if isinstance(entry, dict) and len(entry) == 1:
        ((group, name),) = entry.items()
        if str(group).removeprefix("/") in groups():
            return str(group).removeprefix("/"), str(name), None
    elif isinstance(entry, str) and (match := ENTRY.fullmatch(entry)):
        group, _, name = match["path"].partition("/")
        if group in groups():
            return group, name, "_here_"
    raise UserError(f"{file_label} has {entry} in its defaults list: allowed: _self_, /GROUP: NAME, /GROUP/NAME@_here_")


def _merge(old: Any, new: Any) -> Any:
    """Put `new` over `old`: dicts are merged, all else is replaced; a missing value replaces nothing."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return old if new == MISSING else new
    return {**old, **{key: _merge(old[key], value) if key in old else value for key, value in new.items()}}


def step_parts() -> list[str]:
    """Return the parts of a policy of which steps are kinds."""
    return sorted({name.rpartition("/")[0] for name in items(STEP) if "/" in name})


def parts_with_kinds() -> tuple[str, ...]:
    """Return the parts of a policy that have a kind, by their full names."""
    return (*KINDS, *(f"policy.{part}" for part in step_parts()))


def step_settings() -> Tree:
    """Return the settings that steps add to a policy, with their defaults."""
    added: Tree = dict.fromkeys(step_parts(), NO_STEP)
    for name, item in items(STEP).items():
        if "/" not in name:
            added |= {key: value for key, value in content(item).items() if key not in ("_target_", "name")}
    return added


def content(item: Item) -> Any:
    """Lay an item's file over what the classes in it declare; a policy that evicts has the settings of steps too.

    Raises UserError for a file that is no YAML, and as `class_of`. Never change the result.
    """
    if is_python_file(item.path.name):
        return node_of(item.group, str(item.path))
    if names_object(word := str(item.path)):
        scored = {"defaults": [{"/score": "attn"}]} if item.group == "policy" else {}
        return scored | node_of_object(word)
    node = _settings_of(_read(item.path, str(item)), item.group, item.name)
    if not isinstance(node, dict) or item.group not in node:
        return _with_defaults(item.group, item.name, node)
    return {key: _with_defaults(key, item.name, value) for key, value in node.items()}


def _with_defaults(group: str, name: str, part: Any) -> Any:
    """Return a part that names a class, with what the class declares; other settings as they are."""
    if not isinstance(part, dict) or not isinstance(part.get("_target_"), str):
        return part
    first = {key: part[key] for key in ("_target_", "name") if key in part}
    return first | _defaults_of_file(group, name, part) | part


def _defaults_of_file(group: str, name: str, part: Tree) -> Tree:
    """Return the settings that a file need not state; a policy has the settings of steps too, or none if it keeps
    everything.

    What every task has is added when a run is composed, unless its class has another default: that is its protocol.
    The settings of a kind of a part have other names.
    """
    usual = dict(defaults_of(group, part | {"name": name}))
    match group:
        case "policy" if "budget" not in (part.get("accepts", usual.get("accepts")) or ()):
            return {key: value for key, value in usual.items() if key == "accepts"}
        case "policy":
            return step_settings() | usual
        case "task":
            every = defaults(TaskSettings)
            return {key: value for key, value in usual.items() if key not in every or value != every[key]}
        case "step" | "allocation" if "/" in name:
            return {}
    return usual


def _settings_of(node: Any, group: str, name: str) -> Any:
    """Return the content of a file without the words about it."""
    return entry_of(node, group, name).tree if isinstance(node, dict) else node


def _read(path: Path, file_label: str) -> Any:
    """Read the content of one file. Raises UserError for one that is no YAML. The result is shared: never change it."""
    try:
        return _parsed(path.read_text("utf-8"))
    except (YAMLError, OmegaConfBaseException, UnicodeDecodeError) as error:
        raise UserError(f"{file_label}: {path} cannot be read: {' '.join(str(error).split())}") from None


@lru_cache(maxsize=2**10)
def _parsed(text: str) -> Any:
    return OmegaConf.to_container(OmegaConf.load(io.StringIO(text)))


def _checked_file(item: Item, node: Any) -> Tree:
    """Return the part of a composed tree that a file fills. Raises UserError where it says less than it must."""
    if not isinstance(node, dict) or not isinstance(node.get("_target_"), str):
        raise UserError(f"{item}: {item.path} names no class: add _target_: package.module.Class")
    if node.get("name") != item.name:
        raise UserError(f"{item}: {item.path} says name: {node.get('name')}, but must say name: {item.name}")
    if item.group == "policy" and not isinstance(node.get("accepts"), list):
        raise UserError(f"{item}: {item.path} has no field accepts: add accepts: [score, budget]")
    return {str(key): value for key, value in node.items()}


def _has(tree: Tree, key: str) -> bool:
    parent, _, last = key.rpartition(".")
    if parent in parts_with_kinds():  # a part that is written by its kind has fields too
        return True
    node = _at(_with_host(tree) if parent.startswith(HOST) else tree, parent.split(".") if parent else ())
    return isinstance(node, dict) and (last in node or parent == ARGUMENTS)


def _with_value(tree: Tree, key: str, value: Value) -> Tree:
    """Return the tree with another value of a setting that it has. A dict changes the fields that it names."""
    names, (parent, _, last) = key.split("."), key.rpartition(".")
    if parent in parts_with_kinds():  # `uniform` is short for {kind: uniform}; another kind has other fields
        part = _at(tree, names[:-1])
        kept = {} if last == "kind" else part if isinstance(part, dict) else {"kind": part}
        return _replaced(tree, names[:-1], kept | {last: value.read})
    if parent.startswith(HOST):
        tree = _with_host(tree)
    old, new, group = _at(tree, names), value.read, names[0]
    if isinstance(new, (int, float)):  # a text that looks like a number stays as it was written
        texts = text_fields(class_of(group, tree[group])) if group in GROUPS else ("results.dir", "data.root")
        new = value.text if key.removeprefix(f"{group}." if group in GROUPS else "") in texts else new
    if isinstance(old, dict) and isinstance(new, dict):
        other_kind = key in parts_with_kinds() and new.get("kind", old.get("kind")) != old.get("kind")
        new = new if other_kind else old | new
    return _replaced(tree, names, new)


def _replaced(tree: Tree, names: Sequence[str], value: Any) -> Tree:
    first, *rest = names
    return {**tree, first: _replaced(tree[first], rest, value) if rest else value}


def _at(tree: Any, names: Sequence[str]) -> Any:
    for name in names:
        tree = tree.get(name) if isinstance(tree, dict) else None
    return tree


def _with_host(tree: Tree) -> Tree:
    """Return the tree in which `score.host=cake` has become what the file of that score says. Raises UserError for
    another.
    """
    host = _at(tree, HOST.split("."))
    if not isinstance(host, str):
        return tree
    if host not in items("score"):
        raise UserError(f"unknown {HOST}={host}: {closest(host, items('score'))}")
    return _replaced(tree, HOST.split("."), load_entry("score", host))


def _unknown(setting: Override, trees: Sequence[Tree]) -> str:
    """Say what to do about a setting that no tree has; a misspelt last word is compared with its siblings."""
    key, values = setting.key, ",".join(value.text for value in setting.values)
    if named := equivalent(key, values.split(",")):
        return f"unknown setting {key}: write {named}"
    parents = key.split(".")[:-1]
    parent = ".".join(parents)
    policies = ", ".join(dict.fromkeys(tree["policy"]["name"] for tree in trees))
    if parents and all(_at(tree, parents) is None and _has(tree, parent) for tree in trees) and parent in NULLABLE:
        return f"{parent} is null in {policies}: set it as one value, {parent}={NULLABLE[parent]}"
    if parents == ["score"] and not any("score" in tree["policy"]["accepts"] for tree in trees):
        return f"unknown setting {key}: {policies} takes no score: it has its own"
    names = {name for tree in trees for name, _ in flat(_with_host(tree))}
    allowed = sorted(name for name in names if "_target_" not in name and name not in FIXED)
    if not parents and (inner := [name for name in allowed if name.rpartition(".")[2] == key]):
        return f"unknown setting {key}: write {' or '.join(f'{name}={values}' for name in inner)}"
    while len(parents) > 1 and not any(name.split(".")[:-1] == parents for name in allowed):
        parents = parents[:-1]
    siblings = [name for name in allowed if name.split(".")[:-1] == parents]
    if parents and parents[0] in GROUPS and not siblings:
        names = ", ".join(dict.fromkeys(tree[parents[0]]["name"] for tree in trees))
        advice = ""
        if parents[0] in held_groups():
            others = [name for name in items(parents[0]) if name != held_groups()[parents[0]]]
            advice = f"; add {parents[0]}=NAME: {', '.join(others)}"
        return f"unknown setting {key}: {names} has none{advice}"
    return f"unknown setting {key}: {closest(key, siblings or allowed)}"


def flat(node: Tree, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every setting of a tree by its full name, a part before its own settings."""
    for key, value in node.items():
        yield f"{prefix}{key}", value
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
