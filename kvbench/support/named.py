"""Commands, reports, plots, checks and items: a file of a group names the code of each; none is imported to list them.

says: tokens, seconds and energy  # {report} stands for the names of that group
_target_: package.module.function  # a command, a check: package.module
keys: {at: 0.9, x: [bytes, pairs]}  # settings of its own: a default, or the values that are allowed
flags: true  # of a report: its code is a module with `declare` and `main`, as a command's
heading: Read  # of a command, in `kvbench --help`; without one it is under "More"
place: 1  # in a list; without one after the others, by name
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import yaml

from kvbench.support.errors import UserError
from kvbench.support.plugins import SUFFIX, own_sources, usable_plugins
from kvbench.support.settings_file import LOADER


@dataclass(frozen=True)
class Named:
    """A command, a report or a plot, and what its file says of it."""

    name: str
    says: str
    target: str
    keys: Mapping[str, Any]
    flags: bool | None = None
    heading: str | None = None
    place: int | None = None

    def load(self) -> Any:
        """Import its code. Raises UserError if there is none."""
        try:
            return resolve_name(self.target)
        except (ImportError, AttributeError, ValueError) as error:
            raise UserError(f"{self.name}: its file names {self.target}, which cannot be imported: {error}") from None


def named(group: str) -> dict[str, Named]:
    """Return the members of a group by name: ours in their places, then what plugins bring.

    A plugin that is broken brings none, so that every command still runs; `kvbench doctor` says what is wrong with it.
    """
    ours = [read(file) for source in own_sources() for file in source.files(group)]
    members = {each.name: each for each in sorted(ours, key=lambda each: (each.place is None, each.place, each.name))}
    for source in usable_plugins():
        with suppress(UserError):
            members |= {each.name: each for each in map(read, source.files(group)) if each.name not in members}
    return members


def member(group: str, name: str) -> Named | None:
    """Return one member of a group, or None; a member of ours without a look at plugins or at other files."""
    for source in own_sources():
        if name.isidentifier() and (file := source.conf / group / f"{name}{SUFFIX}").is_file():
            return read(file)
    return named(group).get(name)


def code_of(group: str, name: str) -> Any:
    """Import what a member of a group names. Raises UserError where no source brings it, and if it does not import."""
    if (found := member(group, name)) is None:
        raise UserError(f"no {group} {name}: the extra that brings it is not installed")
    return found.load()


def made(file: str, form: str = "; {}") -> str:
    """Return how a kind of file is made, in the words of what makes it, to follow a message: "" where nothing does."""
    return form.format(maker.says) if (maker := member("maker", file)) else ""


def read(file: Path) -> Named:
    """Return what a file says. Raises UserError for one that does not say what it names."""
    try:
        content = yaml.load(file.read_text("utf-8"), LOADER)
        says = re.sub(r"\{(\w+)\}", lambda group: ", ".join(named(group[1])) or group[0], str(content["says"]))
        target, keys = str(content["_target_"]), dict(content.get("keys") or {})
        return Named(file.stem, says, target, keys, *(content.get(key) for key in ("flags", "heading", "place")))
    except (yaml.YAMLError, KeyError, TypeError, ValueError, AttributeError):
        raise UserError(f"{file} is not the file of a {file.parent.name}: it has says: and _target_:") from None
