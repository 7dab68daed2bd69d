"""Names and settings that there are not, and ours instead: for words of kvpress, lm-evaluation-harness, papers too."""

import re
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import Any

from yaml import YAMLError, safe_load

from kvbench.config.entries import Tree, flat, folders, options
from kvbench.config.overrides import FIXED, GROUPS, Override
from kvbench.support.plugins import SYNONYMS, held_groups, items, sources
from kvbench.support.text import closest

METHODS = ("press", "press_name", "method", "methods")
NULLABLE = {"policy.pool": "{kind:max,size:7}", "policy.phases": "{decode:{window:1}}"}
"""Parts that are null in some files, with a value that can be set."""


def unknown_name(group: str, name: str) -> str:
    """Say what to write instead of a name that a group does not have; random weights are suggested for no model."""
    names, others = [*options(group), *folders(group)], ""
    if group == "model" and not name.startswith("shape"):
        names = [each for each in options("model") if not each.startswith("shape/")]
        others = "; others: model=hf model.path=FOLDER_OR_HUB_ID; model=shape/NAME has random weights"
    ours = equivalent(group, [name])
    return f"unknown {group} {name}: " + (f"write {ours}" if ours else f"{closest(name, names)}{others}")


def unknown_setting(setting: Override, trees: Sequence[Tree]) -> str:
    """Say what to write instead of a setting that no tree has; a misspelt last word is compared with its siblings."""
    key, values = setting.key, ",".join(value.text for value in setting.values)
    unknown, *parents = f"unknown setting {key}", *key.split(".")[:-1]
    if ours := equivalent(key, values.split(",")):
        return f"{unknown}: write {ours}"
    policies = ", ".join(dict.fromkeys(tree["policy"]["name"] for tree in trees))
    if (parent := ".".join(parents)) in NULLABLE and all(tree["policy"].get(parents[1], 0) is None for tree in trees):
        return f"{parent} is null in {policies}: set it as one value, {parent}={NULLABLE[parent]}"
    if parents == ["score"] and not any("score" in tree["policy"]["accepts"] for tree in trees):
        return f"{unknown}: {policies} takes no score: it has its own"
    allowed = sorted({name for tree in trees for name, _ in flat(tree) if "_target_" not in name and name not in FIXED})
    if not parents and (inner := [name for name in allowed if name.rpartition(".")[2] == key]):
        return f"{unknown}: write {' or '.join(f'{name}={values}' for name in inner)}"

    def siblings() -> list[str]:
        return [name for name in allowed if name.split(".")[:-1] == parents]

    while len(parents) > 1 and not siblings():
        parents.pop()
    if not siblings() and parents and parents[0] in GROUPS:
        members = ", ".join(dict.fromkeys(tree[parents[0]]["name"] for tree in trees))
        usual = held_groups().get(parents[0])
        others = [name for name in items(parents[0]) if name != usual]
        return f"{unknown}: {members} has none" + (f"; add {parents[0]}=NAME: {', '.join(others)}" if usual else "")
    return f"{unknown}: {closest(key, siblings() or allowed)}"


def equivalent(key: str, values: Sequence[str]) -> str | None:
    """Translate `key=values` of another tool, as it is written on a command line; None if nothing is known."""
    if key == "compression_ratio":
        kept = [str(round(1 - float(value), 6)) for value in values if re.fullmatch(r"0?\.\d+|0", value)]
        return f"budget={','.join(kept) or 'SHARE'} (the share of KV pairs that is kept: 1 - compression_ratio)"
    if key in (*METHODS, "policy", "score"):
        methods = [method for value in values if (method := _method(value, key))]
        return " or ".join(methods) or ("policy=NAME (kvbench list policies)" if key in METHODS else None)
    if key == "model":
        folder, _, name = values[0].rpartition("/")
        is_path = folder not in ("", "shape") and name.lower() not in items("model")
        return f"model=hf model.path={values[0]}" if is_path else None
    settings, ours = synonyms()["settings"], synonyms()["values"].get(key, {})
    renamed = ",".join(ours.get(value, value) for value in values)
    return settings[key].replace("VALUE", renamed) if key in settings else None


@cache
def synonyms() -> dict[str, dict[str, Any]]:
    """Return the `methods`, `values` and `settings` of other tools, as each source lists them; not of a bad file."""
    merged: dict[str, dict[str, Any]] = {"methods": {}, "values": {}, "settings": {}}
    for source in sources():
        with suppress(OSError, YAMLError, LookupError, TypeError, AttributeError):
            for kind, words in safe_load((source.conf / SYNONYMS).read_text("utf-8")).items():
                merged[kind] = {**words, **merged[kind]}
    return merged


def _method(name: str, key: str) -> str | None:
    methods = synonyms()["methods"]
    if (plain := _plain(name)) in methods and key in METHODS:
        return methods[plain]
    policies, scores = ({_plain(item): item for item in items(group)} for group in ("policy", "score"))
    if plain in policies and (key != "score" or plain not in scores):
        return f"policy={policies[plain]}"
    if plain in scores:
        return f"score={scores[plain]}" if key == "score" else f"policy=plain score={scores[plain]}"
    return methods.get(plain)


def _plain(name: str) -> str:
    return re.sub(r"[\W_]", "", name.lower()).removesuffix("press")
