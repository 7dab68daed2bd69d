"""`kvbench list`: what can be named on the command line, each with the first line of its file."""

from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvbench.cli.errors import closest
from kvbench.sources import OURS, items

GROUPS = {"policies": "policy", "scores": "score", "tasks": "task", "models": "model"}
GROUPS |= {"probes": "probe", "launchers": "launcher", "loggers": "logger", "papers": "paper"}
LONG = "--long"
USAGE = f"""kvbench list policies|scores|tasks|models|probes|launchers|loggers|papers: what can be named, whose it is.

  {LONG}: all that the file of each says of its source, and what it was verified against
"""


def main(arguments: Sequence[str]) -> int:
    """Print one list. Raises ValueError for a word that is no list."""
    words = [argument for argument in arguments if argument != LONG]
    if not words or words[0] in ("-h", "--help"):
        print(USAGE, end="")
        return 0
    (what, *rest) = words
    if what not in GROUPS or rest:
        raise ValueError(f"cannot list {' '.join(arguments)}: {closest(what, GROUPS)}")
    print_list(GROUPS[what], LONG in arguments)
    return 0


def print_list(group: str, long: bool = False) -> None:
    """Print the names of a group, each with the first line of its file, or all lines above its first setting."""
    rows = _options(group, long)
    whose = any(source != OURS for _, source, _ in rows)  # said where it is not the same for all
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True, style="bold")
    if whose:
        table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for name, source, line in rows:
        table.add_row(name, *((source,) if whose else ()), Text(line))
    Console(highlight=False).print(table)


def _options(group: str, long: bool) -> list[tuple[str, str, str]]:
    said = _all_comments if long else _first_comment
    return [(name, str(item.source), said(item.path)) for name, item in items(group).items()]


def _first_comment(path: Path) -> str:
    for line in path.read_text("utf-8").splitlines():
        if line.startswith("#") and "@package" not in line:
            return line.lstrip("# ")
    return ""


def _all_comments(path: Path) -> str:
    """The comment lines above a file's first setting."""
    above = takewhile(lambda line: line.startswith("#"), path.read_text("utf-8").splitlines())
    return " ".join(line.lstrip("# ") for line in above if "@package" not in line)
