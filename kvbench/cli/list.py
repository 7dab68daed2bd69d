"""`kvbench list`: what can be named on the command line, whose it is, what it says of itself."""

import json
from collections.abc import Sequence
from dataclasses import asdict

from rich.text import Text

from kvbench.cli.showing import Shown, shown
from kvbench.cli.terminal import print_columns, screen, width_of, wrapped
from kvbench.cli.usage import show
from kvbench.support.errors import UserError
from kvbench.support.nearest import closest
from kvbench.support.plugins import OURS, items
from kvbench.support.printable import printable

GROUPS = {"policies": "policy", "scores": "score", "tasks": "task", "models": "model"}
GROUPS |= {"probes": "probe", "launchers": "launcher", "loggers": "logger", "papers": "paper"}
LONG, JSON = "--long", "--json"
USAGE = f"""kvbench list policies|scores|tasks|models|probes|launchers|loggers|papers [NAME ...] [{LONG} | {JSON}]

What can be named on a command line: a line each. With names, or with {LONG}: the source of each, what it was verified
against, and its settings with their defaults, which is where its variants are told.

  {LONG}   all that the files say
  {JSON}   the same for programs: a list of objects

  kvbench list policies
  kvbench list scores caote lava
  kvbench list tasks 'ruler/niah_*'
  kvbench list policies {JSON}
"""


def main(arguments: Sequence[str]) -> int:
    """Print one list. Raises ValueError for a word that is no list, and for a name that is not on it."""
    if {*arguments} <= {LONG, JSON} or any(argument in ("-h", "--help") for argument in arguments):
        show(USAGE)
        return 0
    for argument in arguments:
        if argument.startswith("-") and argument not in (LONG, JSON):
            raise UserError(f"list has no flag {argument}: {closest(argument, (LONG, JSON, '--help'))}")
    words = [argument for argument in arguments if argument not in (LONG, JSON)]
    what, *names = words
    if what not in GROUPS:
        raise UserError(f"cannot list {' '.join(words)}: {closest(what, GROUPS)}")
    found = _named(GROUPS[what], names)
    if JSON in arguments:
        print(json.dumps([asdict(one) for one in found], indent=1))
    elif LONG in arguments or names:
        _print_whole(found)
    else:
        _print_lines(found)
    return 0


def print_list(group: str) -> None:
    """Print the names of a group, each with the first line of its file."""
    _print_lines(_named(group, ()))


def _named(group: str, names: Sequence[str]) -> list[Shown]:
    """Raises ValueError for a name or pattern that nothing has."""
    from fnmatch import fnmatchcase

    known = items(group)
    for name in names:
        if not any(fnmatchcase(one, name) for one in known):
            raise UserError(f"unknown {group} {name}: {closest(name, known)}")
    return [shown(one) for key, one in known.items() if not names or any(fnmatchcase(key, name) for name in names)]


def _print_lines(found: Sequence[Shown]) -> None:
    whose = any(one.source != OURS for one in found)  # said where it is not the same for all
    rows = [(one.name, *((one.source,) if whose else ()), one.first) for one in found]
    print_columns(rows, ("bold", "dim"))


def _print_whole(found: Sequence[Shown]) -> None:
    console = screen()
    width = width_of(console)
    for place, one in enumerate(found):
        whose = "" if one.source == OURS else f"  ({one.source})"
        console.print(Text(("\n" if place else "") + printable(one.name + whose), style="bold"), soft_wrap=True)
        parts = [*one.says.split("\n"), *([f"Verified: {one.verified}"] if one.verified else [])]
        settings = [f"{each.key}={each.default}" if each.default else each.key for each in one.settings]
        said = [f"   # {each.said}" if each.said else "" for each in one.settings]
        both = (f"{text}{more}" for text, more in zip(settings, said, strict=True))
        for indent, text in (*((2, part) for part in parts), *((4, text) for text in both)):
            lines = [printable(text)] if width is None else wrapped(printable(text), width - indent - 4)
            for number, line in enumerate(lines):
                console.print(" " * (indent + 4 * (number > 0 and indent > 2)) + line, soft_wrap=True)
