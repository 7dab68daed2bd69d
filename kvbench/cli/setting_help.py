"""The help of settings: what the class of a part says of its fields, and what a file notes on its values."""

from collections.abc import Iterator, Mapping
from typing import Any

from yaml import YAMLError

from kvbench.config.entries import ALLOCATION, STEP, class_of, flat, load_entry, parsed, step_parts
from kvbench.config.overrides import format_value
from kvbench.support.annotations import help_of
from kvbench.support.noted import noted
from kvbench.support.plugins import NO_STEP, GroupItem, items
from kvbench.support.settings_file import Entry, entry_of

NO_SETTINGS = {"_target_", "name", "accepts", "defaults", "usual"}
"""Keys of settings files that cannot be set on a command line."""


def help_of_part(group: str, node: Mapping[str, Any]) -> Mapping[str, str]:
    """Return what the class of a part says of its settings; of ours without importing it. Raises as `class_of`."""
    try:
        texts: Mapping[str, str] = noted(node["_target_"])
    except LookupError:  # a plugin's
        texts = help_of(class_of(group, node))
    return {**texts, **help_of_allocations(texts), **help_of_steps()} if group == "policy" else texts


def help_of_allocations(texts: Mapping[str, str]) -> dict[str, str]:
    """Return the help of `heads` and `layers` of a policy with the names of their kinds, and of their settings."""
    helps: dict[str, str] = {}
    for part in ("heads", "layers"):
        names = [name for name in items(ALLOCATION) if name.startswith(f"{part}/")]
        for name in names:
            own = help_of_part(ALLOCATION, load_entry(ALLOCATION, name))
            helps |= {f"{part}.{key}": text for key, text in own.items()}
        helps[part] = f"{texts[part]}: {', '.join(name.partition('/')[2] for name in names)}"
    return helps


def help_of_steps() -> dict[str, str]:
    """Return the help of each setting that steps add to policies."""
    texts: dict[str, str] = {}
    for part in step_parts():
        kinds = (name.rpartition("/")[2] for name in items(STEP) if name.startswith(f"{part}/"))
        texts[part] = f"what happens to pairs after selection: {', '.join((NO_STEP, *kinds))}"
    for name in items(STEP):
        if "/" not in name:
            texts |= help_of_part(STEP, load_entry(STEP, name))
    return texts


def notes_of(item: GroupItem) -> dict[str, str]:
    """Return the notes on values in the file of an item, by the full names of the settings."""
    entry = words_of(item)
    tree = entry.tree if item.group in entry.tree else {item.group: entry.tree}
    return {name if name.split(".")[0] in tree else f"{item.group}.{name}": note for name, note in entry.notes.items()}


def explained(tree: dict[str, Any], texts: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield the key, the value as a command line has it, and the help of each setting of a tree that can be set.

    The value of a setting with parts, whose lines follow, is blank; without help such a setting is left out.
    """
    for key, value in flat(tree):
        has_parts = isinstance(value, dict) and bool(value)
        if not {*key.split(".")} & NO_SETTINGS and (key in texts or not has_parts):
            yield key, "" if has_parts else format_value(value), texts.get(key, "")


def words_of(item: GroupItem) -> Entry:
    """Return the words of a file; nothing for one of a plugin that cannot be read, of which whoever uses it is told."""
    try:
        node = parsed(item.path.read_text("utf-8"))
    except (YAMLError, UnicodeDecodeError):
        node = None
    return entry_of(node if isinstance(node, dict) else {}, item.group, item.name)
