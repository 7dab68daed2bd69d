"""From overrides to trees: one plain dict of settings for each combination of the values that overrides list.

A tree is what a class declares of a run, then the entry of each group, then the command line's settings, each over the
one before. `conf/run.yaml` says which entry a group has unless the command line names another. Trees are never changed
in place.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import compress, product
from math import prod
from typing import Any

import yaml

from kvbench.config.entries import (
    EVERY_TASK,
    MISSING,
    Tree,
    class_of,
    content,
    defaults_of,
    find,
    flat,
    folders,
    load_entry,
    options,
    parts_with_kinds,
    text_fields,
)
from kvbench.config.overrides import GROUPS, Override, Value, format_value
from kvbench.config.protocol import protocols
from kvbench.config.synonyms import unknown_name, unknown_setting
from kvbench.support import paths
from kvbench.support.annotations import Help, annotated
from kvbench.support.errors import UserError
from kvbench.support.named import made
from kvbench.support.noted import declared
from kvbench.support.plugins import GroupItem, brought, held_groups, items
from kvbench.support.text import closest

MOST_COMBINATIONS = 100_000
"""Cells of a command: each is composed and held in memory."""
HOST = ("score", "host")
"""A part that is a score itself and is named like one."""
LENGTH = "task.context_length"
ARGUMENTS = "score.args"
"""Arguments of code of others: any name is a setting, and the score checks them."""
RUN = "kvbench.run.settings.RunSettings"
"""The class of the settings beside the groups."""
TEXTS = ("results.dir", "data.root")
"""Settings beside the groups that are texts."""
EXAMPLES = {
    "model.path": "FOLDER_OR_HUB_ID",
    "task.path": "FILE of JSON lines with context, question and answers; a task of rows reads a table or a data set",
    LENGTH: "4096 (tokens of a prompt of RULER and its answer, at most the model's longest sequence)",
}
"""What stands for the value of a setting of several classes that has no default; other classes say it on the field."""
REFERENCE = re.compile(r"\$\{([^{}]*)\}")
"""`${seed}`: the value of another setting."""


def combinations(overrides: Sequence[Override], unused: set[str] | None = None) -> list[Tree]:
    """Return the trees of every combination of values; groups vary slowest.

    A policy that takes no score is composed with its own. A setting applies to the combinations that have it. Where
    `unused` is given, settings that no combination has are added to it. Raises UserError for names that no group has,
    and for settings that no combination has.
    """
    group_overrides = [override for override in with_members(overrides) if override.is_group]
    settings = [override for override in overrides if not override.is_group]
    settings.sort(key=lambda override: (override.key != "protocol", override.key.count(".")))  # parts before fields
    for override in group_overrides:
        for value in override.values:
            if find(override.key, value.text) is None:
                raise UserError(unknown_name(override.key, value.text))
    _check_number([*group_overrides, *settings])
    groups = [override.key for override in group_overrides]
    named = product(*([value.text for value in override.values] for override in group_overrides))
    bases = [composed(dict(zip(groups, names, strict=True))) for names in named]
    if not any(setting.key == LENGTH for setting in settings):
        bases = _with_shared_length(bases)
    trees: list[Tree] = []
    idle = {setting.key: setting for setting in settings}
    for base in bases:
        combined = [base]
        for setting in settings:
            changed = [_with_values(tree, setting) for tree in combined]
            if any(changed):
                idle.pop(setting.key, None)
            combined = [new for tree, several in zip(combined, changed, strict=True) for new in several or [tree]]
        trees += combined
    if unused is not None:
        unused.update(idle)
    elif idle:
        raise UserError(unknown_setting(next(iter(idle.values())), [with_host(base) for base in bases]))
    return trees


def with_members(overrides: Sequence[Override]) -> list[Override]:
    """Return overrides; a folder of a group or a pattern is replaced by the names of the files it stands for."""

    def members(override: Override) -> tuple[Value, ...]:
        names = list[str]()
        for name in (value.text for value in override.values):
            pattern = f"{name}/*" if name in folders(override.key) else name
            names += [option for option in options(override.key) if fnmatchcase(option, pattern)] or [name]
        return tuple(Value(name, name) for name in names)

    return [replace(each, values=members(each)) if each.is_group else each for each in overrides]


def composed(members: Mapping[str, str]) -> Tree:
    """Return the tree of a choice of names, by group. Raises UserError for a bad file."""
    tree = dict(declared(RUN))
    for group, name in {**brought(paths.conf()).usual, **held_groups()}.items():
        item = find(group, members.get(group, name))
        assert item is not None, "names of a command line are checked before"
        entry = content(item)
        if group == "policy":  # it may change settings of its score
            tree = _merged(tree, content(_score_of(item, entry, members.get("score"))))
        tree = _merged(tree, {key: part for key, part in entry.items() if key != "defaults"})
    usual = defaults_of("task", tree["task"])
    return {**tree, "task": {name: usual[name] for name in declared(EVERY_TASK)} | tree["task"]}


def _score_of(policy: GroupItem, entry: Tree, chosen_score: str | None) -> GroupItem:
    """Return the score of a policy: the one that was chosen if it takes one, else the one that its file names.

    Raises UserError for a file that names something else.
    """
    match [default for default in entry.get("defaults") or () if default != "_self_"]:
        case [{"/score": str(own)}]:
            pass
        case []:
            own = "attn"
        case named:
            raise UserError(f"{policy}: {policy.path}: defaults: {format_value(named)}: allowed: [/score: NAME]")
    name = chosen_score if chosen_score is not None and "score" in entry["policy"]["accepts"] else own
    item = find("score", name)
    if item is None:
        raise UserError(f"{policy}: {policy.path}: no score {name}: {closest(name, items('score'))}")
    return item


def _merged(old: Any, new: Any) -> Any:
    """Put `new` over `old`: dicts are merged, all else is replaced."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return new
    return {**old, **{key: _merged(old[key], value) if key in old else value for key, value in new.items()}}


def _check_number(overrides: Sequence[Override]) -> None:
    """Raise UserError for more combinations than a command may have."""
    count = prod(len(override.values) for override in overrides)
    if count > MOST_COMBINATIONS:
        lists = (f"{len(each.values)} of {each.key}" for each in overrides if len(each.values) > 1)
        raise UserError(
            f"{' x '.join(lists)} are {count} combinations, more than {MOST_COMBINATIONS}: name fewer values, and "
            "the others in another command"
        )


def _with_shared_length(bases: Sequence[Tree]) -> list[Tree]:
    """Give tasks of `shared_length` the longest of the lengths that their files have, or none with another model than
    the embedded one or a random one.
    """
    shared = [getattr(class_of("task", base["task"]), "shared_length", False) for base in bases]
    longest = max((base["task"]["context_length"] for base in compress(bases, shared)), default=None)

    def with_length(base: Tree) -> Tree:
        model = base["model"]
        has_own_weights = model.get("path") is None and not class_of("model", model).is_pulled
        return _replaced(base, LENGTH.split("."), longest if has_own_weights else MISSING)

    return [with_length(base) if is_shared else base for base, is_shared in zip(bases, shared, strict=True)]


def _with_values(tree: Tree, setting: Override) -> list[Tree]:
    """Return the tree with each value of a setting; none if it has no such setting.

    Raises UserError for an unknown protocol, and for an unknown host of a score whose settings are changed.
    """
    if setting.key == "protocol":
        return [with_protocol(tree, value.read) for value in setting.values]
    names = setting.key.split(".")
    if tuple(names[:2]) == HOST and names[2:]:
        tree = with_host(tree)
    parent, last = ".".join(names[:-1]), names[-1]
    part = at(tree, names[:-1])
    if parent in parts_with_kinds():  # `uniform` is short for {kind: uniform}; another kind has other fields
        kept = {} if last == "kind" else part if isinstance(part, dict) else {"kind": part}
        return [_replaced(tree, names[:-1], kept | {last: value.read}) for value in setting.values]
    if not isinstance(part, dict) or (last not in part and parent != ARGUMENTS):
        return []
    return [_replaced(tree, names, _changed(tree, setting.key, part.get(last), value)) for value in setting.values]


def _changed(tree: Tree, key: str, old: Any, value: Value) -> Any:
    """Return the new value of a setting: a dict changes the fields that it names, a number for a text stays as it was
    written.
    """
    new, (group, _, name) = value.read, key.partition(".")
    if isinstance(new, (int, float)):
        is_text = name in text_fields(class_of(group, tree[group])) if group in GROUPS else key in TEXTS
        return value.text if is_text else new
    if isinstance(old, dict) and isinstance(new, dict):
        other_kind = key in parts_with_kinds() and new.get("kind", old.get("kind")) != old.get("kind")
        return new if other_kind else old | new
    return new


def _replaced(tree: Tree, names: Sequence[str], value: Any) -> Tree:
    first, *rest = names
    return {**tree, first: _replaced(tree[first], rest, value) if rest else value}


def at(tree: Any, names: Sequence[str]) -> Any:
    """Return what a tree has under these names; None for nothing."""
    for name in names:
        tree = tree.get(name) if isinstance(tree, dict) else None
    return tree


def with_protocol(tree: Tree, protocol: Any) -> Tree:
    """Return a tree whose policy is as its file says, under a protocol. Raises UserError for another one."""
    if not isinstance(protocol, str) or protocol not in protocols():
        raise UserError(f"protocol={format_value(protocol)}: allowed: {', '.join(protocols())}")
    return {**tree, "policy": protocols()[protocol].over(tree["policy"]), "protocol": protocol}


def with_host(tree: Tree) -> Tree:
    """Return the tree in which `score.host=cake` has become what the file of that score says. Raises UserError for
    another.
    """
    host = at(tree, HOST)
    if not isinstance(host, str):
        return tree
    if host not in items("score"):
        raise UserError(f"unknown score.host={host}: {closest(host, items('score'))}")
    return _replaced(tree, HOST, load_entry("score", host))


def resolved(tree: Tree, group: str | None = None) -> Tree:
    """Return a tree, or one group of it, without references, the host of a score as its file describes it.

    Raises UserError for a host that is no score, a setting without a value, and a reference to no setting.
    """
    tree = with_host(tree)
    part = _referred(tree[group] if group else tree, tree)
    for key, value in flat({group: part} if group else part):
        if isinstance(value, str) and value == MISSING:
            raise UserError(f"{key} has no default: add {key}={_example(key, tree)} to the command")
    return part


def _referred(node: Any, tree: Tree, followed: tuple[str, ...] = ()) -> Any:
    """Return a node with the values of settings for references to them, `${seed}`. followed: those that led here.

    Raises UserError for a reference to no value, or to itself.
    """
    if isinstance(node, dict):
        return {key: _referred(value, tree, followed) for key, value in node.items()}
    if isinstance(node, list):
        return [_referred(value, tree, followed) for value in node]
    if not isinstance(node, str) or (reference := REFERENCE.search(node)) is None:
        return node
    name = reference[1]
    *parents, last = name.split(".")
    part = at(tree, parents)
    if name in followed:
        raise UserError(f"{node}: {name} refers to itself")
    if not isinstance(part, dict) or last not in part:
        raise UserError(f"{node}: no setting {name} to refer to: {closest(name, dict(flat(tree)))}")
    value = _referred(part[last], tree, (*followed, name))
    if reference[0] == node:
        return value
    text = value if isinstance(value, str) else format_value(value)
    return _referred(node.replace(reference[0], text), tree)


def _example(key: str, tree: Tree) -> str:
    """Return what stands for the value of a setting."""
    group, _, name = key.partition(".")
    if key in EXAMPLES or "_target_" not in tree.get(group, ()):
        return EXAMPLES.get(key, Help.example)
    notes = getattr(dict(annotated(class_of(group, tree[group]))).get(name), "__metadata__", ())
    note = next((note for note in notes if isinstance(note, Help)), Help(""))
    return note.example + made(note.file, " ({})")


def as_yaml(tree: Tree) -> str:
    """Write a tree as YAML, its references replaced. Raises UserError for a reference to no setting."""
    return yaml.safe_dump(_referred(tree, tree), sort_keys=False, allow_unicode=True)
