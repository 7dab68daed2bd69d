"""The declaration of a command: its flags, the words beside them and its help text.

A command module has `declare(parser)`, which imports nothing heavy, and `main(flags)`. Help, completion and the errors
for what is not declared come from the declaration. Knows nothing of what commands do.
"""

import argparse
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from typing import Any, NamedTuple, NoReturn

from kvbench.support.errors import UserError
from kvbench.support.text import closest, wrapped

HELP = ("-h", "--help")
RESULTS = "results/runs"
WIDTH = 120
"""Columns of a help text where there is no screen."""
NO_BREAK = "\u00a0"
EXAMPLE = re.compile(r" +(kvbench|eval) ")
INDENT = 6
"""Blanks before a continued line of an example."""
TERM = re.compile(r" +\S+(?: \S+){0,3} {2,}")
"""A flag or a word and two blanks or more, before its meaning."""
PASS_AT = "pass@K: how often at least one of K drawn answers to a prompt is right"


class Words(NamedTuple):
    """The words that a command takes beside its flags. `usage` is how help writes them; completion reads the rest.

    names: the names that can follow the words before them. groups: groups of settings, `policy` for `policy=` and
    `policy.`. settings: other settings, such as `budget=`. selects_rows: whether `COLUMN=VALUE,...` selects rows.
    """

    usage: str = ""
    names: Callable[[Sequence[str]], Iterable[str]] = lambda before: ()
    groups: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    selects_rows: bool = False


class Parser(argparse.ArgumentParser):
    """Reads the line of one command. Flags may stand among the words; names of flags cannot be shortened.

    `description` says what the command does, `epilog` holds details, examples and exit codes. A command whose first
    word decides which flags can follow declares each such word as a verb.
    """

    def __init__(self, prog: str, description: str = "", words: Words | None = None) -> None:
        super().__init__(prog=prog, description=description, add_help=False, allow_abbrev=False)
        self.words = words or Words()
        self.verbs: dict[str, Parser] = {}
        self.bare_exit: int | None = None  # of a line without arguments, which prints the help; None: it is allowed

    def add_verb(self, name: str, description: str = "", words: Words | None = None) -> "Parser":
        """Declare what can follow the word `name`; returns its parser, which takes the flags."""
        self.verbs[name] = Parser(f"{self.prog} {name}", description, words=words)
        return self.verbs[name]

    def add_results(self, purpose: str = "a results folder", default: str | None = RESULTS) -> None:
        help_text = purpose if default is None else f"{purpose} (default {default})"
        self.add_argument("--results", metavar="DIR", default=default, help=help_text, action=_OneFolder)

    def add_partial(self) -> None:
        self.add_argument("--partial", action="store_true", help="do not warn of rows that are missing")

    def add_stale(self) -> None:
        """Add the flag that says what happens to rows made by other code."""
        purpose = "where rows are of other code: stop and say so (default), keep them, or make them again"
        self.add_argument("--stale", choices=("stop", "keep", "rerun"), default="stop", help=purpose)

    def read(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Return the flags of a line, with `words`, the others in their order, and `verb` where there are verbs.

        Raises UserError for whatever is not declared.
        """
        if self.verbs:
            verb, *rest = arguments or [""]
            if verb not in self.verbs:
                raise UserError(f"unknown {self._command} {verb}: {closest(verb, self.verbs)}")
            return argparse.Namespace(**vars(self.verbs[verb].read(rest)), verb=verb)
        read = [*takewhile(lambda argument: argument not in self._greedy, arguments)]
        flags, words = self.parse_known_args(read)
        if len(read) < len(arguments):  # argparse would drop a "--" of the rest
            flag, *rest = arguments[len(read) :]
            setattr(flags, self._greedy[flag].dest, rest)
        for place, word in enumerate(words):
            if word.startswith("-"):
                self._refuse_flag(word, *words[place + 1 : place + 2])
            if not self.words.usage:
                fix = f"write --results {word}; " * ("--results" in self.flags() and os.path.exists(word))
                self.error(f"cannot read {word}: {fix}allowed: {', '.join(self.flags())}")
        if self.words.groups:
            self._check_given_once(words)
        flags.words = words
        return flags

    def _refuse_flag(self, word: str, after: str = "") -> NoReturn:
        """Raise UserError for a flag that there is not: of a setting, ours or another tool's, with what to write."""
        from kvbench.config.synonyms import equivalent

        name, _, value = word.partition("=")
        value = value or (after if not after.startswith("-") and "=" not in after else "") or "VALUE"
        fix, key = closest(name, self.flags()), name.lstrip("-").replace("-", "_")
        if self.words.settings:
            roots = {*self.words.groups, *(setting.rstrip("=") for setting in self.words.settings)}
            named = equivalent(key, value.split(",")) or (f"{key}={value}" if key.partition(".")[0] in roots else None)
            fix = f"write {named}" if named else f"{fix}; settings have no dashes: key=value"
        self.error(f"unknown flag {name}: {fix}")

    def _check_given_once(self, words: Sequence[str]) -> None:
        """Raise UserError for a setting that is given twice: the last would be taken, and nobody told."""
        values: dict[str, str] = {}
        for word in words:
            key, equals, value = word.partition("=")
            if equals and key in values:
                both = f"{key} is given twice, as {values[key]} and as {value}"
                self.error(f"{both}: write one of them, or a list, {key}={values[key]},{value}")
            values[key] = value

    def asks_for_help(self, arguments: Sequence[str]) -> bool:
        """Return whether a line has --help, other than after a flag that takes the rest of the line."""
        read = takewhile(lambda argument: argument not in self._greedy, arguments)
        return any(argument in HELP for argument in read)

    @property
    def _greedy(self) -> dict[str, argparse.Action]:
        """The flags that take the rest of the line."""
        actions = self._option_string_actions.items()
        return {flag: action for flag, action in actions if action.nargs == argparse.REMAINDER}

    def flags(self) -> list[str]:
        flags = {flag for action in self._shown for flag in action.option_strings}
        return sorted(flags.union(HELP[-1:], *(verb.flags() for verb in self.verbs.values())))

    def values_of(self, flag: str) -> list[str] | None:
        """Return the values of a flag: its choices, or the choices in a metavar in small letters; empty for files and
        free text.

        None for a word that is not a flag with a value.
        """
        action = self._option_string_actions.get(flag)
        if action is None or action.nargs == 0:
            return None
        if action.choices is not None:
            return list(map(str, action.choices))
        literal = str(action.metavar)
        return literal.split("|") if literal.islower() else []

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{self._command}: {message}; see kvbench {self._command.split()[0]} --help")

    def format_help(self) -> str:
        parsers = list(self.verbs.values()) or [self]
        usages = []
        for parser in parsers:
            flags = (_written(action) if action.required else f"[{_written(action)}]" for action in parser._shown)
            usage = (parser.prog, parser.words.usage, *(flag.replace(" ", NO_BREAK) for flag in flags))
            usages.append(" ".join(filter(None, usage)) + (f": {parser.description}" if self.verbs else ""))
        actions = [action for parser in parsers for action in parser._shown if action.help]
        meanings = {_written(action, ", ".join(action.option_strings)): action.help for action in actions}
        width = max(map(len, meanings), default=0)
        flags = [f"  {flag:<{width}}   {meaning}" for flag, meaning in meanings.items()]
        parts = ["\n".join(usages), self.description or "", "\n".join(flags), self.epilog or ""]
        text = "\n\n".join(part.strip("\n") for part in parts if part)
        return folded(text).replace(NO_BREAK, " ") + "\n"

    @property
    def _command(self) -> str:
        return self.prog.removeprefix("kvbench ")

    @property
    def _shown(self) -> list[argparse.Action]:
        return [action for action in self._actions if action.help != argparse.SUPPRESS]

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            self.error(f"{action.option_strings[-1]} {value}: {closest(str(value), map(str, action.choices))}")


class _OneFolder(argparse.Action):
    """A flag with a folder, which a line has once: the last of several would be taken, and nobody told."""

    def __call__(
        self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: str | None = None
    ) -> None:
        before = getattr(namespace, "folder_named", None)
        if before is not None:
            join = f"kvbench merge {before} {values} --out DIR"
            parser.error(f"{option_string} {before} {option_string} {values}: one folder is read; merge them: {join}")
        namespace.folder_named = values
        setattr(namespace, self.dest, values)


def _written(action: argparse.Action, names: str = "") -> str:
    """Return a flag, or all its names, with what follows it."""
    names = names or max(action.option_strings, key=len)
    if action.nargs == 0:
        return names
    return f"{names} {action.metavar or '|'.join(map(str, action.choices or (action.dest.upper(),)))}"


def split_settings(words: Iterable[str], keys: Iterable[str]) -> tuple[dict[str, str], list[str]]:
    """Return the settings KEY=VALUE of these keys, the last value of each, and the other words in their order."""
    words = list(words)
    settings = [word for word in words if "=" in word and word.partition("=")[0] in keys]
    return dict(word.split("=", 1) for word in settings), [word for word in words if word not in settings]


def folded(text: str) -> str:
    """Return a text folded for the screen, or to 120 columns where there is none. A line of the text is a paragraph."""
    on_screen = sys.stdout.isatty() or "COLUMNS" in os.environ
    width = shutil.get_terminal_size().columns if on_screen else WIDTH
    return "\n".join(line for paragraph in text.split("\n") for line in fold(paragraph, width))


def fold(line: str, width: int) -> list[str]:
    """Split a line into lines of at most `width` columns, or single words; an example stays one command for a shell."""
    if len(line) <= width:
        return [line]
    if EXAMPLE.match(line):
        return _fold_command(line, width)
    term = TERM.match(line)
    indent = len(term[0]) if term else len(line) - len(line.lstrip()) + 4 * line.startswith("kvbench ")
    hanging = " " * min(indent, width // 2)
    return wrapped(line, width, hanging)


def _fold_command(line: str, width: int) -> list[str]:
    end = line.rfind(" ", INDENT, width - 2)
    if len(line) <= width or end < 0 or "#" in line:
        return [line]
    return [f"{line[:end]} \\", *_fold_command(" " * INDENT + line[end + 1 :], width)]
