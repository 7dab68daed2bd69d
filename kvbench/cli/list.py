"""`kvbench list`: what can be named on the command line, its source, and what its settings file says of it."""

import argparse
import fnmatch
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from kvbench.cli.errors import ExitCode
from kvbench.cli.parser import Parser, Words, split_settings
from kvbench.cli.run import SETTINGS as SETTINGS_OF_RUNS
from kvbench.cli.setting_help import explained, help_of_part, notes_of, words_of
from kvbench.cli.terminal import print_columns, screen, warn, width_of
from kvbench.config.entries import ALLOCATION, STEP, content, defaults_of, flat, load_entry
from kvbench.config.overrides import GROUPS as OF_RUNS
from kvbench.config.overrides import format_value
from kvbench.config.protocol import protocols
from kvbench.support.errors import UserError
from kvbench.support.named import read
from kvbench.support.plugins import OURS, GroupItem, brought, faults, groups, items, sources
from kvbench.support.text import closest, printable, wrapped

GROUPS = {"policies": "policy", "scores": "score", "tasks": "task", "models": "model"}
GROUPS |= {"launchers": "launcher", "loggers": "logger", "papers": "paper", "commands": "command", "plots": "plot"}
GROUPS |= {"steps": "step", "allocations": "allocation"}
CODE = ("bench", "bench_result", "convert", "decoding", "doctor", "hint", "kernels", "maker", "model_file")
CODE += ("paper_flag", "plan", "report", "segments", "timing", "warning")
CODE += tuple(group for source in sources() for group in brought(source.conf).unlisted)
"""Groups whose files name code that a command line does not; all others are listed but those that say so."""
GROUPS |= {f"{group}s": group for group in sorted({*groups()} - {*CODE, *GROUPS.values()})}
SYNONYMS = {"presses": "policies", "methods": "policies", "datasets": "tasks", "benchmarks": "tasks"}
VERIFIED = "Verified: "
PLACES = {"paper": "Paper", "code": "Code", "kvpress": "kvpress"}
"""Where a method has other defaults, as files and lists name it."""
NO_SETTINGS = ("paper", "command", "plot", "attention")
"""Groups whose files hold no settings of a run."""
REPORTS, SETTINGS, COLUMNS = "reports", "settings", "columns"
OTHERS = (REPORTS, SETTINGS, COLUMNS)
"""Lists of what has no files, or more than the files of a group."""


@dataclass(frozen=True)
class Setting:
    """A setting as it is written on the command line, its default (blank: it has parts), and what it means.

    otherwise: the default under the other protocol, where that differs, such as `protocol=common: 16`.
    """

    key: str
    default: str
    comment: str
    otherwise: str = ""


@dataclass(frozen=True)
class Description:
    """Words of a settings file. `says`: what the item is, and its defaults elsewhere."""

    name: str
    source: str
    says: str
    verified: str
    settings: tuple[Setting, ...]


def declare(parser: Parser) -> None:
    """Add the flags of the command."""
    parser.description = """
The names that a command line can use, one per line. With names, or with --long: also the source of each, what it was \
verified against, and its settings with their defaults (its variants are among them). Defaults of policies are those \
of protocol=paper, as in a run, unless protocol=common is given; both are shown where they differ.

list settings prints every setting of a run with what it means, and with the value that other words of the line give \
it. Words without = narrow it: list settings policy launcher. list columns prints the columns of a row.
"""
    parser.epilog = """
  kvbench list policies
  kvbench list policies snapkv protocol=common
  kvbench list scores caote lava
  kvbench list tasks 'ruler/niah_*'
  kvbench list policies --json
  kvbench list settings
  kvbench list settings policy policy=lava
"""
    parser.set_defaults(help_text=parser.format_help)
    kinds = (*GROUPS, *OTHERS)
    parser.words = Words(f"{'|'.join(kinds)} [NAME ...] [key=value ...]", names=_names)
    parser.add_argument("--long", action="store_true", help="also print source, verification and settings")
    parser.add_argument("--json", action="store_true", help="print JSON: a list of objects")


def main(flags: argparse.Namespace) -> int:
    """Print one list. Raises UserError for a word that is no list, and for a name that is not on it."""
    if not flags.words:
        print(flags.help_text(), end="")
        return ExitCode.OK
    kind, *names = flags.words
    if kind in OTHERS:
        {REPORTS: _print_reports, SETTINGS: _print_settings, COLUMNS: _print_columns}[kind](names, flags.json)
        return ExitCode.OK
    if kind not in GROUPS:
        fix = f"kvbench list {SYNONYMS[kind]}" if kind in SYNONYMS else closest(kind, (*GROUPS, *OTHERS))
        raise UserError(f"cannot list {kind}: {fix}")
    chosen, names = split_settings(names, ("protocol",))
    protocol = chosen.get("protocol", next(iter(protocols())))
    if protocol not in protocols():
        raise UserError(f"protocol={protocol}: allowed: {', '.join(protocols())}")
    if chosen and kind != "policies":
        raise UserError(f"protocol={protocol}: only policies have other settings under another protocol: leave it out")
    for fault in faults():
        warn(fault)
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
    return ExitCode.OK


def print_list(group: str) -> None:
    """Print the names of a group, each with the first line of what its file says."""
    _print_lines(_named(group, ()))


def describe(item: GroupItem) -> Description:
    """Describe an item by the words of its file."""
    entry = words_of(item)
    said = read(item.path).says if item.group == "command" else entry.says
    first, *more = said.splitlines() or [""]
    elsewhere = (f"{label}: {entry.elsewhere[place]}" for place, label in PLACES.items() if place in entry.elsewhere)
    says = "\n".join(filter(None, (first, " ".join(more), *(" ".join(text.split()) for text in elsewhere))))
    return Description(item.name, str(item.source), says, " ".join(entry.verified.split()), ())


def _named(group: str, names: Sequence[str]) -> list[Description]:
    """Raise UserError for a name or pattern that nothing has."""
    available = items(group)
    return [describe(available[name]) for name in _matching(group, names, available)]


def _matching(kind: str, patterns: Sequence[str], available: Iterable[str]) -> list[str]:
    """Return the names that match a pattern, or all. Raises UserError for a pattern that nothing matches."""
    available = list(available)
    for pattern in patterns:
        if not fnmatch.filter(available, pattern):
            raise UserError(f"unknown {kind} {pattern}: {closest(pattern, available)}")
    matches = {name for pattern in patterns or ("*",) for name in fnmatch.filter(available, pattern)}
    return [name for name in available if name in matches]


def _names(words_before: Sequence[str]) -> Sequence[str]:
    """Return the words that can follow: a kind, then the names of its items."""
    if not words_before:
        return (*GROUPS, *OTHERS)
    if words_before[0] == SETTINGS:
        return SETTINGS_OF_RUNS.groups
    if words_before[0] == COLUMNS:
        from kvbench.records.meanings import MEANINGS

        return list(MEANINGS)
    settings = (f"protocol={name}" for name in protocols()) if words_before[0] == "policies" else ()
    return [*(items(GROUPS[words_before[0]]) if words_before[0] in GROUPS else ()), *settings]


def _explained(group: str, described: Description) -> Description:
    """With its settings, or with the reason why it has none: a plugin may be broken."""
    if group in NO_SETTINGS:
        return described
    try:
        return replace(described, settings=tuple(settings_of(items(group)[described.name])))
    except UserError as error:
        return replace(described, says=f"{described.says}\n{error}".strip())


def settings_of(item: GroupItem) -> Iterator[Setting]:
    """Yield settings with the note of the file, else with the meaning of the field."""
    from kvbench.config.compose import composed

    group, tree = item.group, content(item)
    if group in (ALLOCATION, STEP):
        yield from _settings_of_policies(item)
        return
    whole = composed({group: item.name}) if group in OF_RUNS else tree  # with its defaults
    texts: dict[str, str] = {}
    for name, node in ((name, whole.get(name)) for name in tree):
        if isinstance(node, dict) and "_target_" in node:
            texts |= {f"{name}.{key}": text for key, text in help_of_part(name, node).items()}
    texts |= notes_of(item)
    for key, value, says in explained(tree, texts):
        if not value.startswith("${"):  # it comes from elsewhere
            yield Setting(key, value, says)


def _settings_of_policies(item: GroupItem) -> Iterator[Setting]:
    """Yield the settings of policies that a step or a kind of an allocation has."""
    node, part = load_entry(item.group, item.name), item.name.rpartition("/")[0]
    values = {key: value for key, value in defaults_of(item.group, node).items() if key != "kind"}
    for key, value, says in explained(values, help_of_part(item.group, node)):
        yield Setting(f"policy.{part}.{key}" if part else f"policy.{key}", value, says)


def _under(protocol: str, policy: Description) -> Description:
    """Return a policy with the defaults that a run under a protocol has."""
    file = load_entry("policy", policy.name)
    values = {name: dict(flat(each.over(file), "policy.")) for name, each in protocols().items()}
    settings = []
    for setting in policy.settings:
        default = values[protocol].get(setting.key)
        defaults = {name: tree.get(setting.key) for name, tree in values.items()}
        others = {name: other for name, other in defaults.items() if other not in (default, None)}
        if others and setting.default:
            otherwise = ", ".join(f"protocol={name}: {format_value(other)}" for name, other in others.items())
            setting = replace(setting, default=format_value(default), otherwise=otherwise)
        settings.append(setting)
    return replace(policy, settings=tuple(settings))


def _print_reports(names: Sequence[str], as_json: bool) -> None:
    """Print the reports of `kvbench report`. Raises UserError for names: `kvbench report --help` explains them."""
    from kvbench.cli.main import declared

    if names:
        raise UserError(f"kvbench list reports takes no names: {' '.join(names)}; see kvbench report --help")
    _print_said({name: str(verb.description) for name, verb in declared("report").verbs.items()}, as_json)


def _print_columns(names: Sequence[str], as_json: bool) -> None:
    """Print the columns of a row. Raises UserError for a name or pattern that no column has."""
    from kvbench.records.meanings import MEANINGS

    _print_said({name: MEANINGS[name] for name in _matching("column", names, MEANINGS)}, as_json)


def _print_said(sentences: Mapping[str, str], as_json: bool) -> None:
    """Print names, each with its sentence."""
    if as_json:
        print(json.dumps([{"name": name, "says": says} for name, says in sentences.items()], indent=1))
    else:
        print_columns([*sentences.items()], ("bold",))


def _print_settings(words: Sequence[str], as_json: bool) -> None:
    from kvbench.cli.all_settings import lines_of, print_all

    if as_json:
        print(json.dumps([asdict(line) for line in lines_of(words)], indent=1))
    else:
        print_all(words)


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
            default = setting.default and f"={setting.default}"
            comment = "; ".join(filter(None, (setting.otherwise, setting.comment)))
            lines.append((4, f"{setting.key}{default}{comment and f'   # {comment}'}"))
        for indent, text in lines:
            parts = [printable(text)] if width is None else wrapped(printable(text), width - indent - 4)
            for number, part in enumerate(parts):
                console.print(" " * (indent + 4 * (number > 0 and indent > 2)) + part, soft_wrap=True)
