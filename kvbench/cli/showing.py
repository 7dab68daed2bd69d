"""What a file of settings says of itself: its first line, its source, what it was verified against, its settings.

Comments are for people and are no part of YAML: the lines are read as they stand.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile

from kvbench.support.plugins import Item

VERIFIED = "Verified: "
_LINE = re.compile(
    r"(?P<indent> *)(?P<key>[\w ,.]+):(?: +(?P<value>(?:\"[^\"]*\"|[^#\"]|(?<! )#)*?))?(?: +# (?P<said>.*))?"
)
_HIDDEN = {"_target_", "name", "takes", "defaults"}


@dataclass(frozen=True)
class Setting:
    """A setting as it is written on the command line, its default (blank: it has parts), and what its comment says."""

    key: str
    default: str
    said: str


@dataclass(frozen=True)
class Shown:
    """An item in words. `says`: all above its first setting, but for what it was `verified` against."""

    name: str
    source: str
    says: str
    verified: str
    settings: tuple[Setting, ...]

    @property
    def first(self) -> str:
        """What it is, in a line."""
        return self.says.split("\n", 1)[0]


def shown(item: Item) -> Shown:
    """Read the file of an item."""
    lines = item.path.read_text("utf-8").splitlines()
    above = [
        line.lstrip("# ") for line in takewhile(lambda line: line.startswith("#"), lines) if "@package" not in line
    ]
    first, rest = (above or [""])[0], " ".join(above[1:])
    said, _, verified = rest.partition(VERIFIED)
    apart = any("@package _global_" in line for line in lines)
    settings = () if item.group == "paper" else tuple(_settings(lines, "" if apart else item.group))
    return Shown(item.name, str(item.source), "\n".join(filter(None, (first, said.strip()))), verified, settings)


def _settings(lines: list[str], prefix: str) -> Iterator[Setting]:
    """Those with a value or a comment, by their whole names, but for values that are taken over from elsewhere."""
    open_: list[tuple[int, str]] = []
    for line in lines:
        found = _LINE.fullmatch(line)
        if found is None or not found["key"].isidentifier():
            continue
        indent, key, value = len(found["indent"]), found["key"], (found["value"] or "").strip()
        while open_ and open_[-1][0] >= indent:
            open_.pop()
        path = [prefix] * bool(prefix) + [name for _, name in open_] + [key]
        if not value:
            open_.append((indent, key))
        if (value or found["said"]) and not {*path} & _HIDDEN and not value.startswith(("${", "|", ">")):
            as_typed = value.replace(", ", ",").replace(": ", ":") if value[:1] in ("[", "{") else value
            yield Setting(".".join(path), as_typed, found["said"] or "")
