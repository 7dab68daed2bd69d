"""From a part of a tree to an object of the class that it names, and the label that tells it from others."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from kvbench.config.entries import Tree, base_of, class_of, is_kind, step_parts
from kvbench.config.given import names_object, object_of, settings_of_object
from kvbench.config.overrides import format_value
from kvbench.config.validation import validated
from kvbench.support.errors import UserError
from kvbench.support.plugins import held_groups, items

COLUMNS = ("variant", "layout")
"""Fields of a policy that have a column of their own in every row."""


def build(group: str, node: Tree) -> Any:
    """Return an instance of the class that `_target_` names, its fields checked and converted by their annotations.

    A part with a `_target_` of its own, such as the host of a score, is built first. Raises UserError for a class that
    does not load or is none of the group, and for the first value that is not allowed.
    """
    target, word = class_of(group, node), node["_target_"]
    if names_object(word) and node == settings_of_object(word):
        return object_of(word)
    values = {
        key: build(f"{group}.{key}", value) if isinstance(value, dict) and "_target_" in value else value
        for key, value in node.items()
        if key != "_target_"
    }
    if group == "policy":
        from kvbench.config.policy_parts import policy_from  # imports torch

        built = policy_from(target, values)
    else:
        built = validated(target, group, values)
    if (base := base_of(group)) and not is_kind(group, type(built)):
        item = items(group).get(built.name, f"{group} {built.name}")
        raise UserError(f"{item}: {word} is not a {group}: derive it from {base}")
    return built


def label(group: str, node: Tree, usual: Tree, left_open: Tree) -> str:
    """Return the name of a policy or score, and every field that differs from what its file says (`usual`) or leaves
    open. Of a holder, which is a part of a policy's label, these are words of the command line, its budget in any case.
    """
    before, now = (_settings_of(group, build(group, each)) for each in (usual, node))
    changed = dict(_changed({}, left_open)) | dict(_changed(_of_same_kind(before, now), now))
    for part in step_parts():
        if kind := changed.pop(f"{part}.kind", ""):  # as on a command line, the kind first
            changed = {part: kind} | changed
    if group in held_groups():
        budget = {"budget": format_value(node["budget"])} if "budget" in node else {}
        settings = (f"{group}.{key}={value}" for key, value in (budget | changed).items())
        return " ".join((f"{group}={node['name']}", *settings))
    return " ".join((node["name"], *(f"{key}={value}" for key, value in changed.items() if key not in COLUMNS)))


def _settings_of(group: str, built: Any) -> dict[str, Any]:
    """Return the settings of a part; a policy has the settings of steps too."""
    from kvbench.config.policy_parts import settings_of

    return settings_of(built) if group == "policy" else asdict(built)


def _of_same_kind(usual: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """`usual` with the defaults of the kinds of steps that there are now: a label names what differs from them."""
    from kvbench.config.policy_parts import usual_of_kind

    for part in step_parts():
        if part in now and now[part]["kind"] != usual[part]["kind"]:
            usual = usual | {part: usual_of_kind(part, now[part]["kind"]) | usual[part]}
    return usual


def _changed(usual: dict[str, Any], actual: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, now in actual.items():  # a part of another kind has other fields
        before = usual.get(key)
        if isinstance(now, dict):
            yield from _changed(before if isinstance(before, dict) else {}, now, f"{prefix}{key}.")
        elif before != now:
            yield f"{prefix}{key}", format_value(now).strip("[]")  # rich reads brackets as markup
