"""A file of settings that stands for several names: all tasks of a benchmark, and what differs from one to the next.

    says: "LongBench {member}: {says}"  # what `kvbench list` shows; {member} is the last part of a name
    notes: {samples: of 200}  # what there is to know of a value here, by setting
    _target_: kvbench.tasks.longbench.LongBenchTask  # from here on as in a file of one name
    member: "{member}"
    samples: 50
    members:  # settings of the group that differ, or are only here
      longbench/lcc: {says: the next line of a file of code., chat: false, notes: {samples: of 500}}

`{says}` and `{after}` stand for the words of a member; those that have no `after` have that of the file. No member is
named like its file.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import yaml

from kvbench.support.errors import UserError

MEMBERS = "members"
WORDS = ("says", "after")
NOTES = "notes"
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class Member:
    """What a file says of one of its names: its words, notes on values by setting, and the tree of its settings."""

    says: str
    notes: dict[str, str]
    tree: dict[str, Any]


@lru_cache
def member_names(text: str) -> tuple[str, ...]:
    """The names that a file stands for; none for a file of one name, and for one that is no YAML."""
    if f"\n{MEMBERS}:" not in text:
        return ()
    try:
        members = yaml.load(text, LOADER)[MEMBERS]
    except (yaml.YAMLError, TypeError, LookupError):
        return ()
    return tuple(map(str, members)) if isinstance(members, dict) else ()


def member_of(node: Mapping[str, Any], group: str, name: str) -> Member:
    """What a file with members says of one of them. Raises UserError for one that is no mapping."""
    own = node[MEMBERS][name]
    if not isinstance(own, dict):
        raise UserError(f"{group} {name}: its settings must be a mapping, such as {{}} or {{samples: 10}}, not {own!r}")
    words = {word: own.get(word, node.get(word, "")) for word in WORDS} | {"says": own.get("says", "")}
    marks = {f"{{{mark}}}": text for mark, text in {"member": name.rpartition("/")[2], **words}.items()}
    ours = (MEMBERS, NOTES, *WORDS)
    shared, settings = ({key: value for key, value in part.items() if key not in ours} for part in (node, own))
    part = shared.get(group, shared)
    part = {"_target_": part.get("_target_"), "name": name, **part, **settings}
    notes = {**(node.get(NOTES) or {}), **(own.get(NOTES) or {})}
    return Member(
        says=_filled(str(node.get("says", "{says}")), marks),
        notes={str(key): str(_filled(note, marks)) for key, note in notes.items()},
        tree=_filled({**shared, group: part} if group in shared else part, marks),
    )


def _filled(node: Any, marks: Mapping[str, str]) -> Any:
    """A node with the words of a member for the marks in its texts."""
    if isinstance(node, dict):
        return {key: _filled(value, marks) for key, value in node.items()}
    if isinstance(node, str):
        for mark, text in marks.items():
            node = node.replace(mark, text)
    return node
