"""From settings to composed configurations, one for each combination of their lists.

Lists are expanded here rather than by Hydra's multirun, so that all cells of a command are planned together. Hydra
composes once per distinct model, task, policy and score; plain settings are filled in as data.
"""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from hydra.utils import get_class
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from kvbench.config.files import check_files, file_of, read_file
from kvbench.config.overrides import FIXED, GROUPS, Asked, Value, text_fields
from kvbench.config.searching import find_plugins
from kvbench.support import paths
from kvbench.support.errors import UserError
from kvbench.support.plugins import Source, items, sources
from kvbench.support.text import closest

Tree = dict[str, Any]
MOST_COMBINATIONS = 100_000
"""Cells of a command: each is composed and held."""
HOST = "score.host"
"""A part that is a score itself and is named like one."""
SPLITS = ("policy.heads", "policy.layers")
"""Parts that have a kind, and fields that depend on it."""
WHOLE = {"policy.pool": "{kind:max,size:7}", "policy.phases": "{decode:{window:1}}"}
"""What stands for a part that some files leave out."""


def options(group: str) -> list[str]:
    """Names of a group's files, e.g. `ruler/niah_single_1` for tasks."""
    return list(items(group))


def folders(group: str) -> list[str]:
    """Names that stand for several files of a group: `ruler` for every task of RULER."""
    names = options(group)
    return sorted({name.rpartition("/")[0] for name in names if "/" in name} - set(names))


def with_members(asked: Sequence[Asked]) -> list[Asked]:
    """The same settings, a folder of a group and a pattern replaced by the files in it and those that it matches."""
    return [replace(one, values=tuple(_members(one))) if one.is_group else one for one in asked]


def _members(asked: Asked) -> Iterator[Value]:
    for value in asked.values:
        pattern = f"{value.text}/*" if value.text in folders(asked.key) else value.text
        names = [name for name in options(asked.key) if fnmatchcase(name, pattern)]
        yield from (Value(name, name) for name in names or [value.text])


def combinations(asked: Sequence[Asked], everywhere: bool = False, unused: set[str] | None = None) -> list[Tree]:
    """Composed configurations of every combination, groups varying slowest. Branches in which they agree are shared.

    A folder of a group (`task=ruler`) stands for its files, a pattern (`task=ruler/niah_*`) for what it matches. A
    policy that takes no score is composed with its own. A setting applies to the combinations that have it.
    Raises ValueError for names that no group has, and for a setting that no combination has, or with `everywhere` one
    of them has not. Where `unused` is given, settings that no combination has are added to it instead.
    """
    groups = [one for one in with_members(asked) if one.is_group]
    settings = [one for one in asked if not one.is_group and not one.is_hydra]
    _check_names(groups)
    _check_count([*groups, *settings])
    rest = tuple(one.text for one in asked if one.is_hydra)
    configs: list[Tree] = []
    trees: list[Tree] = []
    idle = {one.key: one for one in settings}
    find_plugins()
    known = sources()
    with initialize_config_dir(str(paths.conf().resolve()), version_base="1.3"):
        for names in product(*(one.values for one in groups)):
            chosen = {one.key: value.text for one, value in zip(groups, names, strict=True)}
            tree = _compose(known, *_words(chosen), *rest)
            check_files(tree, GROUPS, chosen)
            if "score" not in tree["policy"]["takes"]:
                tree = _compose(known, *_words(chosen, without="score"), *rest)
            trees.append(tree)
            settings.sort(key=lambda one: one.key.count("."))  # a whole part before its fields
            put, base = _Putting(), whole_parts(deepcopy(tree))
            for values in product(*(one.values for one in settings)):
                filled, missing = base, []
                for one, value in zip(settings, values, strict=True):
                    changed = put(filled, one.key, value)
                    filled = filled if changed is None else changed
                    if changed is None:
                        missing.append(one)
                if missing and everywhere:
                    why = "with -m every cell is composed with all of the settings"
                    raise UserError(f"{_unknown(missing[0].key, [tree])}; {why}")
                if idle:
                    idle = {key: one for key, one in idle.items() if one in missing}
                configs.append(filled)
    if unused is not None:
        unused.update(idle)
        return configs
    for key in idle:
        raise UserError(_unknown(key, trees))
    return configs


def whole_parts(tree: Any) -> Any:
    """A composed tree in which `score.host=cake` has become what the file of that score says.

    Raises ValueError for a host that is no score.
    """
    host = _at(tree, HOST.split("."))
    if isinstance(host, str):
        if host not in options("score"):
            raise UserError(f"unknown {HOST}={host}: {closest(host, options('score'))}")
        tree["score"]["host"] = file_of("score", host)
    return tree


def _check_names(groups: Sequence[Asked]) -> None:
    for one in groups:
        legal = items(one.key)
        for value in one.values:
            if value.text in legal:
                read_file(legal[value.text])  # what Hydra says of a bad one does not name its plugin
            else:
                raise UserError(f"unknown {one.key} {value.text}: {closest(value.text, [*legal, *folders(one.key)])}")


def _check_count(asked: Sequence[Asked]) -> None:
    count = prod(len(one.values) for one in asked)
    if count > MOST_COMBINATIONS:
        lists = " x ".join(f"{len(one.values)} of {one.key}" for one in asked if len(one.values) > 1)
        raise UserError(
            f"{lists} are {count} combinations, more than {MOST_COMBINATIONS}: name fewer values, the rest in another "
            "command"
        )


def _words(chosen: dict[str, str], without: str = "") -> list[str]:
    return [f"{group}={name}" for group, name in chosen.items() if group != without]


@lru_cache(maxsize=2**10)
def _compose(known: tuple[Source, ...], *words: str) -> Tree:
    """The tree of a choice of files, composed once a process: nobody changes it. `known` says whose files those are."""
    try:
        tree = OmegaConf.to_container(compose("run", overrides=list(words)))
    except (HydraException, OmegaConfBaseException, YAMLError) as error:
        said = " ".join(str(error).split()) if isinstance(error, YAMLError) else str(error).splitlines()[0]
        raise UserError(f"{' '.join(words)}: {said}") from None
    assert isinstance(tree, dict)
    return {str(key): value for key, value in tree.items()}


def _put(tree: Tree, key: str, value: Value) -> bool:
    """Replace one setting in place; False where there is no such setting. A dict changes the fields it names."""
    parents, last = key.split(".")[:-1], key.rpartition(".")[2]
    node = _at(tree, parents)
    if key.rpartition(".")[0] in SPLITS:  # `uniform` is short for {kind: uniform}; another kind has other fields
        kept = node if isinstance(node, dict) else {"kind": node}
        tree["policy"][parents[-1]] = {"kind": value.read} if last == "kind" else kept | {last: value.read}
        return True
    if not isinstance(node, dict) or last not in node:
        return False
    new = value.text if _is_text(tree, key) and isinstance(value.read, (int, float)) else value.read
    old = node[last]
    if not isinstance(old, dict) or not isinstance(new, dict):
        node[last] = new
    elif key in SPLITS and new.get("kind", old.get("kind")) != old.get("kind"):
        node[last] = new  # a part of another kind has other fields
    else:
        node[last] = old | new
    whole_parts(tree)
    return True


class _Putting:
    """Replaces settings in copies that share all branches but the changed one, which is made once for all trees."""

    def __init__(self) -> None:
        self._made: dict[tuple[Any, ...], tuple[Any, Tree | None]] = {}

    def __call__(self, tree: Tree, key: str, value: Value) -> Tree | None:
        """`tree` with one setting replaced; None where there is no such setting."""
        root = key.partition(".")[0]
        branch = tree.get(root)
        known = (id(branch) if isinstance(branch, dict) else None, key, id(value))
        if known not in self._made:
            copy = {**tree, root: deepcopy(branch)} if root in tree else dict(tree)
            self._made[known] = (branch, copy if _put(copy, key, value) else None)  # holds the branch, and so its id
        _, made = self._made[known]
        return None if made is None else {**tree, root: made[root]}


def _at(tree: Any, keys: Sequence[str]) -> Any:
    for key in keys:
        tree = tree.get(key) if isinstance(tree, dict) else None
    return tree


def _is_text(tree: Tree, key: str) -> bool:
    """Whether a setting is a text, so that one that looks like a number stays as it was written."""
    group, _, name = key.partition(".")
    if group not in GROUPS:
        return key in ("results.dir", "data.root")
    return name in text_fields(get_class(tree[group]["_target_"]))


def _unknown(key: str, trees: Sequence[Tree]) -> str:
    """What to do about a setting that no composition has; a misspelt last word is compared with its siblings."""
    parents = key.split(".")[:-1]
    policies = ", ".join(dict.fromkeys(tree["policy"]["name"] for tree in trees))
    if parents and all(_at(tree, parents) is None and _has(tree, parents) for tree in trees):
        parent = ".".join(parents)
        if parent in WHOLE:
            return f"{parent} is null in {policies}: set it whole, {parent}={WHOLE[parent]}"
    if parents == ["score"] and not any("score" in tree["policy"]["takes"] for tree in trees):
        return f"unknown setting {key}: {policies} takes no score and brings its own"
    known = sorted({one for tree in trees for one in _flatten(tree) if "_target_" not in one and one not in FIXED})
    while len(parents) > 1 and not any(one.split(".")[:-1] == parents for one in known):
        parents = parents[:-1]
    siblings = [one for one in known if one.split(".")[:-1] == parents]
    if parents and parents[0] in GROUPS and not siblings:
        return f"unknown setting {key}: {', '.join(dict.fromkeys(tree[parents[0]]['name'] for tree in trees))} has none"
    return f"unknown setting {key}: {closest(key, siblings or known)}"


def _has(tree: Tree, keys: Sequence[str]) -> bool:
    node = _at(tree, keys[:-1])
    return isinstance(node, dict) and keys[-1] in node


def _flatten(node: Tree, prefix: str = "") -> Iterator[str]:
    for key, value in node.items():
        yield f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{key}.")
