"""What a file of settings must say, whoever wrote it; what is wrong is told with the name of the file's plugin."""

from collections.abc import Mapping
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from kvbench.support.errors import UserError
from kvbench.support.plugins import Item, items

Node = dict[str, Any]


def file_of(group: str, name: str) -> Node:
    """What the file of a name says, not resolved; of one that fills more than its group, the group's part.

    Raises ValueError for a file that cannot be read or lacks what it must say.
    """
    item = items(group)[name]
    tree = read_file(item)
    return check_file(item, tree.get(group, tree) if isinstance(tree, dict) else tree)


def read_file(item: Item) -> Any:
    """What a file says by itself, whatever it takes over from others. Raises ValueError for one that is no YAML."""
    try:
        return OmegaConf.to_container(OmegaConf.load(item.path))
    except (YAMLError, OmegaConfBaseException) as error:
        raise UserError(f"{item}: {item.path} cannot be read: {' '.join(str(error).split())}") from None


def check_file(item: Item, node: Any) -> Node:
    """The part of a composed tree that a file fills. Raises ValueError where it says less than it must."""
    if not isinstance(node, dict) or not isinstance(node.get("_target_"), str):
        raise UserError(f"{item}: {item.path} names no class: add _target_: package.module.Class")
    if node.get("name") != item.name:
        raise UserError(f"{item}: {item.path} says name: {node.get('name')}, but must say name: {item.name}")
    if item.group == "policy" and not isinstance(node.get("takes"), list):
        raise UserError(f"{item}: {item.path} does not say what it takes: add takes: [score, budget]")
    return {str(key): value for key, value in node.items()}


def check_files(tree: Mapping[str, Any], groups: tuple[str, ...], chosen: Mapping[str, str]) -> None:
    """Check what the files of a composed tree filled. Raises ValueError for the first that falls short.

    `chosen` are the names that the command line says; those of other groups come from what these files name.
    """
    for group in groups:
        known = items(group)
        if group not in tree:
            policy = items("policy")[chosen.get("policy", tree["policy"]["name"])]
            raise UserError(f"{policy}: {policy.path} names no {group}: add defaults: [/{group}: NAME]")
        node = tree[group]
        name = chosen.get(group, node.get("name") if isinstance(node, dict) else None)
        if name in known:
            check_file(known[name], node)
