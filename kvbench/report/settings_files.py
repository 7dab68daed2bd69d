"""Settings that extras and plugins bring, as reports need them: read from settings files, and nothing is imported."""

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import yaml

from kvbench.records import COLUMNS
from kvbench.support.noted import declared, defaults
from kvbench.support.plugins import NO_STEP, held_groups, sources
from kvbench.support.settings_file import LOADER

KINDS = ("policy.heads", "policy.layers")
"""Parts of every policy that have a kind."""


def usable_files(group: str) -> Iterator[Path]:
    """Return the settings files of a group: ours, and files of every plugin that is not broken."""
    return (file for source in sources() for file in source.files(group))


@cache
def short() -> dict[str, str]:
    """Return settings of cells by the shorter words of the command line: a holder by its group, a part by its kind."""
    holders = {group: f"{group}.name" for group in held_groups() if group not in COLUMNS}
    return holders | {part: f"{part}.kind" for part in (*KINDS, *(f"policy.{part}" for part in _steps() if part))}


@cache
def left_out() -> dict[str, Any]:
    """Return the values that the description of a cell does not name: the usual holders, and defaults of steps."""
    usual: dict[str, Any] = {f"{group}.name": member for group, member in held_groups().items() if group not in COLUMNS}
    for part, targets in _steps().items():
        if part:
            usual[f"policy.{part}.kind"] = NO_STEP
        else:
            usual |= {f"policy.{key}": value for target in targets for key, value in _defaults_of(target).items()}
    return usual


@cache
def _steps() -> dict[str, list[str]]:
    """Return the classes of steps by the part of a policy that they are kinds of; "" for steps that are no kinds."""
    names: dict[str, list[str]] = {}
    for file in usable_files("step"):
        part = "" if file.parent.name == "step" else file.parent.name
        names.setdefault(part, []).append(yaml.load(file.read_text("utf-8"), LOADER)["_target_"])
    return names


def _defaults_of(target: str) -> Mapping[str, Any]:
    """Return the settings of a class with their defaults; of ours without importing it."""
    try:
        return declared(target)
    except LookupError:
        return defaults(resolve_name(target))
