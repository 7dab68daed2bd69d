"""Meanings of settings: as the class of a part says it, and as the file says it of the values that it has."""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import yaml

from kvbench.support.annotations import help_of
from kvbench.support.noted import noted
from kvbench.support.plugins import Item, items
from kvbench.support.settings_file import LOADER, Entry, entry_of

NO_SETTINGS = {"_target_", "name", "accepts", "defaults", "usual"}
"""Keys of settings files that cannot be set on a command line."""


def meanings_of(group: str, node: dict[str, Any]) -> Mapping[str, str]:
    """Return the meanings of a part's settings from its class; of ours without importing it. Raises as `class_of`."""
    from kvbench.config.compose import class_of

    try:
        texts: Mapping[str, str] = noted(node["_target_"])
    except LookupError:  # a plugin's
        texts = help_of(class_of(group, node))
    return {**texts, **meanings_of_allocations(texts), **meanings_of_steps()} if group == "policy" else texts


def meanings_of_allocations(texts: Mapping[str, str]) -> dict[str, str]:
    """Return the meanings of `heads` and `layers` of a policy with the names of their kinds, and of their settings."""
    from kvbench.config.compose import ALLOCATION, content

    found: dict[str, str] = {}
    for part in ("heads", "layers"):
        by_kind = {name.partition("/")[2]: item for name, item in items(ALLOCATION).items() if name.startswith(part)}
        for item in by_kind.values():
            found |= {f"{part}.{key}": text for key, text in meanings_of(ALLOCATION, content(item)).items()}
        found[part] = f"{texts[part]}: {', '.join(by_kind)}"
    return found


def meanings_of_steps() -> dict[str, str]:
    """Return the meaning of each setting that steps add to policies."""
    from kvbench.config.compose import NO_STEP, STEP, content, step_parts

    texts: dict[str, str] = {}
    for part in step_parts():
        kinds = (name.rpartition("/")[2] for name in items(STEP) if name.startswith(f"{part}/"))
        texts[part] = f"what happens to pairs after selection: {', '.join((NO_STEP, *kinds))}"
    for name, item in items(STEP).items():
        if "/" not in name:
            texts |= meanings_of(STEP, content(item))
    return texts


def notes_of(item: Item) -> dict[str, str]:
    """Return the notes on values in the file of an item, by the full names of the settings."""
    entry = words_of(item)
    tree = entry.tree if item.group in entry.tree else {item.group: entry.tree}
    return {name if name.split(".")[0] in tree else f"{item.group}.{name}": note for name, note in entry.notes.items()}


def explained(tree: dict[str, Any], texts: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield the key, the value as a command line has it, and the meaning of each setting of a tree that can be set.

    The value of a setting with parts, whose lines follow, is blank; without a meaning such a setting is left out.
    """
    from kvbench.config.compose import flat
    from kvbench.config.overrides import format_value

    for key, value in flat(tree):
        has_parts = isinstance(value, dict) and bool(value)
        if not {*key.split(".")} & NO_SETTINGS and (key in texts or not has_parts):
            yield key, "" if has_parts else format_value(value), texts.get(key, "")


def words_of(item: Item) -> Entry:
    """Return the words of a file; nothing for one of a plugin that cannot be read, of which whoever uses it is told."""
    try:
        node = _parsed(item.path.read_text("utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError):
        node = None
    return entry_of(node if isinstance(node, dict) else {}, item.group, item.name)


@lru_cache(maxsize=1)
def _parsed(text: str) -> Any:
    """Read a settings file once: it is asked for its words and its notes, and so is each of its members."""
    return yaml.load(text, LOADER)
