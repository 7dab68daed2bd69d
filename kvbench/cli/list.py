"""`kvbench list`: what can be named on the command line, its source, and what its settings file says of it.

The comments of a settings file are read as they stand: they are for people and no part of YAML.
"""

import argparse
import fnmatch
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import takewhile
from typing import Any

import yaml

from kvbench.cli.errors import Exit
from kvbench.cli.parser import Parser, Words, split_settings
from kvbench.cli.terminal import print_columns, screen, width_of
from kvbench.config.protocol import protocols
from kvbench.support.errors import UserError
from kvbench.support.members import LOADER, Member, member_names, member_of
from kvbench.support.plugins import OURS, Item, items
from kvbench.support.setting import meanings
from kvbench.support.text import closest, printable, wrapped

GROUPS = {"policies": "policy", "scores": "score", "tasks": "task", "models": "model"}
GROUPS |= {"probes": "probe", "launchers": "launcher", "loggers": "logger", "papers": "paper"}
SYNONYMS = {"presses": "policies", "methods": "policies", "datasets": "tasks", "benchmarks": "tasks"}
VERIFIED = "Verified: "
SETTING = re.compile(
    r"(?P<indent> *)(?P<key>[\w ,.]+):(?: +(?P<value>(?:\"[^\"]*\"|[^#\"]|(?<! )#)*?))?(?: +# (?P<comment>.*))?"
)
"""A line of a settings file."""
BY_FIELDS = ("task", "model", "launcher", "logger")
"""Groups whose classes say on their fields what a setting means."""
REPORTS = "reports"
"""What `kvbench report` makes: no settings files."""
NO_SETTINGS = {"_target_", "name", "takes", "defaults"}
"""Keys of settings files that cannot be set on a command line."""


@dataclass(frozen=True)
class Setting:
    """A setting as it is written on the command line, its default (blank: it has parts), and what its comment says.

    otherwise: the default under the other protocol, where that differs, such as `protocol=paper: 32`.
    """

    key: str
    default: str
    comment: str
    otherwise: str = ""


@dataclass(frozen=True)
class Description:
    """What a settings file says. `says`: all above its first setting, without what the item was `verified` against."""

    name: str
    source: str
    says: str
    verified: str
    settings: tuple[Setting, ...]


def declare(parser: Parser) -> None:
    """The flags of the command."""
    parser.description = """
The names that a command line can use, one per line. With names, or with --long: also the source of each, what it was \
verified against, and its settings with their defaults (its variants are among them). Defaults of policies are those \
of protocol=common, as in a run, unless protocol=paper is given; both are shown where they differ.
"""
    parser.epilog = """
  kvbench list policies
  kvbench list policies snapkv protocol=paper
  kvbench list scores caote lava
  kvbench list tasks 'ruler/niah_*'
  kvbench list policies --json
"""
    parser.set_defaults(help_text=parser.format_help)
    kinds = (*GROUPS, REPORTS)
    parser.words = Words(f"{'|'.join(kinds)} [NAME ...] [protocol={'|'.join(protocols())}]", names=_names)
    parser.add_argument("--long", action="store_true", help="also print source, verification and settings")
    parser.add_argument("--json", action="store_true", help="print JSON: a list of objects")


def main(flags: argparse.Namespace) -> int:
    """Print one list. Raises UserError for a word that is no list, and for a name that is not on it."""
    if not flags.words:
        print(flags.help_text(), end="")
        return Exit.OK
    kind, *names = flags.words
    if kind == REPORTS:
        return _print_reports(names, flags.json)
    if kind not in GROUPS:
        fix = f"kvbench list {SYNONYMS[kind]}" if kind in SYNONYMS else closest(kind, (*GROUPS, REPORTS))
        raise UserError(f"cannot list {kind}: {fix}")
    chosen, names = split_settings(names, ("protocol",))
    protocol = chosen.get("protocol", next(iter(protocols())))
    if protocol not in protocols():
        raise UserError(f"protocol={protocol}: allowed: {', '.join(protocols())}")
    if chosen and kind != "policies":
        raise UserError(f"protocol={protocol}: only policies have other settings under another protocol: leave it out")
    described = _named(GROUPS[kind], names)
    if flags.json or flags.long or names:
        described = [_explained(GROUPS[kind], each) for each in described]
        described = [_under(protocol, policy) for policy in described] if kind == "policies" else described
    if flags.json:
        print(json.dumps([asdict(description) for description in described], indent=1))
    elif flags.long or names:
        _print_whole(described)
    else:
        _print_lines(described)
    return Exit.OK


def print_list(group: str) -> None:
    """Print the names of a group, each with the first line of its file."""
    _print_lines(_named(group, ()))


def describe(item: Item) -> Description:
    """Read the file of an item."""
    text = item.path.read_text("utf-8")
    if member_names(text):
        return _member(item, member_of(yaml.load(text, LOADER), item.group, item.name))
    lines = text.splitlines()
    comments = takewhile(lambda line: line.startswith("#"), lines)
    above = [line.lstrip("# ") for line in comments if "@package" not in line]
    says, _, verified = " ".join(above[1:]).partition(VERIFIED)
    has_own_keys = any("@package _global_" in line for line in lines)
    settings = () if item.group == "paper" else tuple(settings_in(lines, "" if has_own_keys else item.group))
    says = re.sub(r"(?:^|(?<=\.)) *(?=(?:Paper|Code|kvpress): )", "\n", says.strip()).strip()  # defaults elsewhere
    says = "\n".join(filter(None, (*above[:1], says)))
    return Description(item.name, str(item.source), says, verified, settings)


def _member(item: Item, member: Member) -> Description:
    """One of the names that a file stands for."""
    settings = []
    for key, value in _leaves(member.tree if item.group in member.tree else {item.group: member.tree}):
        if not {*key.split(".")} & NO_SETTINGS and not (isinstance(value, str) and value.startswith("${")):
            note = member.notes.get(key.removeprefix(f"{item.group}."), "")
            settings.append(Setting(key, _as_typed(value), note))
    return Description(item.name, str(item.source), member.says, "", tuple(settings))


def _leaves(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every value that is no part with settings of its own, by its full name."""
    if not isinstance(node, dict):
        yield prefix, node
        return
    for key, value in node.items():
        yield from _leaves(value, f"{prefix}.{key}" if prefix else key)


def _as_typed(value: Any) -> str:
    """A value as a command line can have it."""
    is_word = isinstance(value, str) and not value.isdigit() and not set(value) & set("{}[]:,\"'\\\n")
    return value if is_word else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def settings_in(lines: Sequence[str], prefix: str) -> Iterator[Setting]:
    """Settings with a value or a comment, by their full names, without those whose value comes from elsewhere."""
    parents: list[tuple[int, str]] = []
    for line in lines:
        match = SETTING.fullmatch(line)
        if match is None or not match["key"].isidentifier():
            continue
        indent, key, value = len(match["indent"]), match["key"], (match["value"] or "").strip()
        while parents and parents[-1][0] >= indent:
            parents.pop()
        path = [prefix] * bool(prefix) + [name for _, name in parents] + [key]
        if not value:
            parents.append((indent, key))
        if (value or match["comment"]) and not {*path} & NO_SETTINGS and not value.startswith(("${", "|", ">")):
            as_typed = value.replace(", ", ",").replace(": ", ":") if value[:1] in ("[", "{") else value
            yield Setting(".".join(path), as_typed, match["comment"] or "")


def _named(group: str, names: Sequence[str]) -> list[Description]:
    """Raises UserError for a name or pattern that nothing has."""
    available = items(group)
    for pattern in names:
        if not fnmatch.filter(available, pattern):
            raise UserError(f"unknown {group} {pattern}: {closest(pattern, available)}")
    wanted = {name for pattern in names or ("*",) for name in fnmatch.filter(available, pattern)}
    return [describe(item) for name, item in available.items() if name in wanted]


def _names(before: Sequence[str]) -> Sequence[str]:
    """What can follow: a kind, then the names of its items."""
    if not before:
        return (*GROUPS, REPORTS)
    settings = (f"protocol={name}" for name in protocols()) if before[0] == "policies" else ()
    return [*(items(GROUPS[before[0]]) if before[0] in GROUPS else ()), *settings]


def _explained(group: str, described: Description) -> Description:
    """With what the class of an item says of settings of which its file says nothing more."""
    from kvbench.config.compose import class_of, combinations
    from kvbench.config.overrides import parse

    if group not in BY_FIELDS:
        return described
    (tree,) = combinations(parse([f"{group}={described.name}"]))
    parts = dict.fromkeys(setting.key.partition(".")[0] for setting in described.settings)
    nodes = {name: node for name in parts if isinstance(node := tree.get(name), dict) and "_target_" in node}
    texts = {
        f"{name}.{key}": text for name, node in nodes.items() for key, text in meanings(class_of(name, node)).items()
    }
    return replace(
        described,
        settings=tuple(
            replace(setting, comment=setting.comment or texts.get(setting.key, "")) for setting in described.settings
        ),
    )


def _under(protocol: str, policy: Description) -> Description:
    """A policy with the defaults that a run under a protocol has."""
    from kvbench.config.compose import file_of, flat
    from kvbench.config.overrides import written

    file = file_of("policy", policy.name)
    values = {name: dict(flat(each.over(file), "policy.")) for name, each in protocols().items()}
    settings = []
    for setting in policy.settings:
        here = values[protocol].get(setting.key)
        others = {name: there for name, of in values.items() if (there := of.get(setting.key)) != here}
        if others and setting.default:
            otherwise = ", ".join(f"protocol={name}: {written(there)}" for name, there in others.items())
            setting = replace(setting, default=written(here), otherwise=otherwise)
        settings.append(setting)
    return replace(policy, settings=tuple(settings))


def _print_reports(names: Sequence[str], as_json: bool) -> int:
    """What `kvbench report` makes. Raises UserError for names, which say more with `kvbench report --help`."""
    from kvbench.cli.main import declared

    if names:
        raise UserError(f"kvbench list reports takes no names: {' '.join(names)}; see kvbench report --help")
    reports = [(name, str(verb.description)) for name, verb in declared("report").verbs.items()]
    if as_json:
        print(json.dumps([{"name": name, "says": says} for name, says in reports], indent=1))
    else:
        print_columns(reports, ("bold",))
    return Exit.OK


def _print_lines(described: Sequence[Description]) -> None:
    with_source = any(item.source != OURS for item in described)
    columns = ((item.name, item.source, item.says.split("\n", 1)[0]) for item in described)
    print_columns([row if with_source else row[::2] for row in columns], ("bold", "dim"))


def _print_whole(described: Sequence[Description]) -> None:
    from rich.text import Text

    console = screen()
    width = width_of(console)
    for place, item in enumerate(described):
        source = "" if item.source == OURS else f"  ({item.source})"
        console.print(Text(("\n" if place else "") + printable(item.name + source), style="bold"), soft_wrap=True)
        lines = [(2, part) for part in item.says.split("\n")]
        lines += [(2, f"{VERIFIED}{item.verified}")] if item.verified else []
        for setting in item.settings:
            default, comment = (
                setting.default and f"={setting.default}",
                "; ".join(filter(None, (setting.otherwise, setting.comment))),
            )
            lines.append((4, f"{setting.key}{default}{comment and f'   # {comment}'}"))
        for indent, text in lines:
            parts = [printable(text)] if width is None else wrapped(printable(text), width - indent - 4)
            for number, part in enumerate(parts):
                console.print(" " * (indent + 4 * (number > 0 and indent > 2)) + part, soft_wrap=True)
