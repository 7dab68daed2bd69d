"""A file of settings: what it says of itself, in words, and the settings of its name, or of each of its names.

    says: "SnapKV (Li et al. 2024): scores use the newest queries."  # `kvbench list` shows the first line
    elsewhere: {paper: window 32, code: window 32, kvpress: window 64}  # defaults of other implementations
    verified: golden snapkv_*; tests/eviction/test_evict.py.  # what the method was compared with
    notes: {pool.kind: "S2: as the json of its experiments"}  # what there is to know of a value here, by setting
    look: 72  # of a policy or a score: its place among the colours and markers of figures (kvbench.report.colours)
    _target_: package.module.Class  # from here on the settings that differ from the defaults of the class

All of the words may be left out. What settings mean stands on the fields of the class. A file may stand for several
names, all tasks of a benchmark:

    says: "LongBench {member}: {says}"  # {member} is the last part of a name
    samples: 50
    members:  # settings of the group that differ, or are only here
      longbench/lcc: {says: the next line of a file of code., chat: false, notes: {samples: of 500}}

`{says}` and `{after}` stand for the words of a member; those that have no `after` have the file's. No member is
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
"""Texts that a file with members has in the words of its members."""
NOTES, ELSEWHERE, VERIFIED, LOOK = "notes", "elsewhere", "verified", "look"
NO_SETTINGS = (*WORDS, NOTES, ELSEWHERE, VERIFIED, LOOK, MEMBERS)
"""Keys of a file that are words about it."""
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class Entry:
    """Entry of one name in a file: words, defaults elsewhere, notes on values by setting, and its settings.

    tree: of its group, or with the group as a part where it has settings of other groups too.
    """

    says: str
    elsewhere: dict[str, str]
    verified: str
    notes: dict[str, str]
    tree: dict[str, Any]


@lru_cache
def member_names(text: str) -> tuple[str, ...]:
    """Return the names that a file stands for; none for a file of one name, and for one that is no YAML."""
    if f"\n{MEMBERS}:" not in text:
        return ()
    try:
        members = yaml.load(text, LOADER)[MEMBERS]
    except (yaml.YAMLError, TypeError, LookupError):
        return ()
    return tuple(map(str, members)) if isinstance(members, dict) else ()


def entry_of(node: Mapping[str, Any], group: str, name: str) -> Entry:
    """Return the entry of a name in a file. Raises UserError for a member that is no mapping."""
    shared = {key: value for key, value in node.items() if key not in NO_SETTINGS}
    says, verified = _text(node.get("says")), _text(node.get(VERIFIED))
    if not isinstance(members := node.get(MEMBERS), Mapping) or name not in members:
        return Entry(says, _texts(node, ELSEWHERE), verified, _texts(node, NOTES), shared)
    own = members[name]
    if not isinstance(own, dict):
        raise UserError(f"{group} {name}: its settings must be a mapping, such as {{}} or {{samples: 10}}, not {own!r}")
    words = {word: own.get(word, node.get(word, "")) for word in WORDS} | {"says": own.get("says", "")}
    marks = {f"{{{mark}}}": text for mark, text in {"member": name.rpartition("/")[2], **words}.items()}
    settings = {key: value for key, value in own.items() if key not in NO_SETTINGS}
    part = shared.get(group, shared)
    part = {"_target_": part.get("_target_"), "name": name, **part, **settings}
    return Entry(
        says=_filled(says or "{says}", marks),
        elsewhere=_texts(node, ELSEWHERE),
        verified=verified,
        notes={key: _filled(note, marks) for key, note in (_texts(node, NOTES) | _texts(own, NOTES)).items()},
        tree=_filled({**shared, group: part} if group in shared else part, marks),
    )


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _texts(node: Mapping[str, Any], key: str) -> dict[str, str]:
    """Return the texts of a mapping in a file; none where it is left out, or is something else."""
    content = node.get(key)
    return {str(name): str(text) for name, text in content.items()} if isinstance(content, Mapping) else {}


def _filled(node: Any, marks: Mapping[str, str]) -> Any:
    """Return a node with the words of a member for the marks in its texts."""
    if isinstance(node, dict):
        return {key: _filled(value, marks) for key, value in node.items()}
    if isinstance(node, str):
        for mark, text in marks.items():
            node = node.replace(mark, text)
    return node
