"""`kvbench completion SHELL`: a script that lets a shell ask kvbench itself what can stand where the cursor is.

Candidates come from declarations, names and keys of files. Nothing is composed: an answer has the time of a key press.
"""

import argparse
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from kvbench.cli.errors import ExitCode
from kvbench.cli.parser import Parser, Words
from kvbench.cli.setting_help import NO_SETTINGS
from kvbench.config.protocol import protocols
from kvbench.records.row import COLUMNS
from kvbench.support.errors import UserError
from kvbench.support.named import member
from kvbench.support.plugins import items
from kvbench.support.text import closest

ASK = "--ask"
"""What the scripts call: the words after it, the last of them unfinished, are answered with one candidate per line."""
SHELLS = ("bash", "zsh", "fish")
"""Each has a script beside this file."""
CHOICES = {
    "reference": ("full", "none"),
}
"""Values of settings that are words: what a run takes, which tests compare."""
ROW_GROUPS = ("policy", "score", "task", "model")
"""Columns of rows whose values are names of settings files."""


def declare(parser: Parser) -> None:
    """Add the words of the command."""
    parser.description = "Print the script that completes commands, flags, settings and their values."
    parser.epilog = """
Put one of these lines into the file that your shell reads when it starts:

  eval "$(kvbench completion bash)"        # ~/.bashrc
  eval "$(kvbench completion zsh)"         # ~/.zshrc, after compinit
  kvbench completion fish | source         # ~/.config/fish/config.fish

  kvbench run pol<TAB> -> policy=     kvbench run policy=sn<TAB> -> policy=snapkv     policy=h2o,sn<TAB> continues
Names of plugins are completed like our own: the shell asks kvbench itself.
"""
    parser.words = Words("|".join(SHELLS), names=lambda before: () if before else SHELLS)
    parser.add_argument(ASK, nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    parser.bare_exit = ExitCode.USAGE


def main(flags: argparse.Namespace) -> int:
    """Print a script, or candidates for a script that asks. Raises UserError for an unknown shell."""
    if flags.ask is not None:
        print("".join(f"{word}\n" for word in candidates(flags.ask)), end="")
        return ExitCode.OK
    shell, *rest = flags.words
    if shell not in SHELLS or rest:
        raise UserError(f"no completion for {' '.join(flags.words)}: {closest(shell, SHELLS)}")
    print(Path(__file__).with_suffix(f".{shell}").read_text("utf-8"), end="")
    return ExitCode.OK


def candidates(words: Sequence[str]) -> list[str]:
    """Words that complete the last of `words`, those after `kvbench`; none where a file is named or no name fits."""
    *before, typed = words or [""]
    return [word for word in _all(before, typed) if word.startswith(typed) and word != typed]


def _all(words_before: Sequence[str], typed: str) -> Iterable[str]:
    from kvbench.cli.main import commands, declared

    if not words_before:
        return [*commands(), "help", "--help", "--version"]
    command, *words_left = words_before
    if command == "help" and not words_left:
        return commands()
    if member("command", command) is None:
        return []
    parser = declared(command)
    if words_left and parser.verbs:
        verb, *words_left = words_left
        if verb not in parser.verbs:
            return []
        parser = parser.verbs[verb]
    values = parser.values_of(words_before[-1])
    if values is not None:
        return values
    if typed.startswith("-"):
        return parser.flags()
    names = [word for word in words_left if not word.startswith("-")]
    return chain(parser.verbs, parser.words.names(names), _settings(parser.words, typed))


def _settings(words: Words, typed: str) -> Iterable[str]:
    """Return settings that a command takes, with their values once the sign = is there."""
    if words.selects_rows:
        return _columns(words, typed)
    key, equals, value = typed.partition("=")
    choices = protocols() if key == "protocol" else CHOICES.get(key, ())
    if equals and choices and f"{key}=" in words.settings:
        start = f"{key}={value.removesuffix(value.rpartition(',')[2])}"
        return [f"{start}{name}" for name in choices]
    if equals:
        return _values(key, value) if key in words.groups or key == "score.host" else []
    if "." in typed and words.groups:
        return _fields(typed.partition(".")[0])
    named = (f"{group}=" for group in words.groups if items(group))
    return [*named, *(f"{group}." for group in words.groups), *words.settings]


def _columns(words: Words, typed: str) -> Iterable[str]:
    """Conditions on rows: a list of KEY=VALUE[,VALUE], of which the last is being typed."""
    condition = typed.rpartition(",")[2]
    key, equals, _ = condition.partition("=")
    prefix = typed.removesuffix(condition)
    columns = [f"{prefix}{name}=" for name in COLUMNS]
    before = prefix.rpartition("=")[0].rpartition(",")[2]
    if before in ROW_GROUPS and not equals:  # another value, or the next condition
        return [*(f"{prefix}{name}" for name in items(before)), *columns]
    if equals and key in ROW_GROUPS:
        return [f"{prefix}{key}={name}" for name in items(key)]
    if equals and not prefix:
        return []
    return [*(() if prefix else words.settings), *columns]


def _values(key: str, value: str) -> Iterable[str]:
    """Return names of a group, the last of a list being typed; a folder stands for its files and leads to them."""
    last = value.rpartition(",")[2]
    start = f"{key}={value.removesuffix(last)}"
    names = list(items(key.partition(".")[0]))
    if "/" not in last:
        folders = sorted({name.rpartition("/")[0] for name in names if "/" in name})
        names = [*(name for name in names if "/" not in name), *folders, *(f"{folder}/" for folder in folders)]
    return [f"{start}{name}" for name in names]


def _fields(group: str) -> Iterable[str]:
    """Return settings in a group, of a run or of all names of the group together, each once."""
    from kvbench.config.compose import RUN
    from kvbench.config.entries import EVERY_TASK, content
    from kvbench.support.noted import declared

    fields = dict.fromkeys(_keys(group, declared(RUN).get(group)))
    if group == "task":
        fields |= dict.fromkeys(_keys(group, declared(EVERY_TASK)))
    for item in items(group).values():
        try:
            tree = content(item)
        except UserError:  # the command itself reports it
            continue
        fields |= dict.fromkeys(_keys(group, tree[group]))
    return fields


def _keys(prefix: str, tree: Any) -> Iterable[str]:
    """`policy.window=` for a value; a part with settings of its own is named too."""
    for name, value in tree.items() if isinstance(tree, dict) else ():
        if name not in NO_SETTINGS:
            yield from _keys(f"{prefix}.{name}", value)
            yield f"{prefix}.{name}="
