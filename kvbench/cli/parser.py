"""The declaration of a command: its flags, the words beside them and its help text.

A command module has `declare(parser)`, which imports nothing heavy, and `main(flags)`. Help, completion and the errors
for what is not declared come from the declaration. Knows nothing of what commands do.
"""

import argparse
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import takewhile
from typing import Any, NamedTuple, NoReturn

from kvbench.support.errors import UserError
from kvbench.support.nearest import closest

HELP = ("-h", "--help")
RESULTS = "results/runs"
WIDTH = 120
"""Columns of a help text where there is no screen."""
NO_BREAK = "\u00a0"
CONTINUED = 6
"""Blanks from which on a line of a help text continues the line before it."""
EXAMPLE = re.compile(r" +(kvbench|eval) ")
TERM = re.compile(r"(?P<head> +\S+(?: \S+){0,3} {2,})(?P<meaning>\S.*)")
"""A flag or a word, two blanks or more, and what it means."""


def no_names(before: Sequence[str]) -> Iterable[str]:
    """For commands that take no names."""
    return ()


class Words(NamedTuple):
    """The words that a command takes beside its flags. `usage` is how help writes them; the rest is for completion:

    the names that can follow the words `before`, the groups of settings (`policy`: `policy=` and `policy.`), other
    settings (`budget=`), and whether `COLUMN=VALUE,...` selects rows.
    """

    usage: str = ""
    names: Callable[[Sequence[str]], Iterable[str]] = no_names
    groups: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    selects_rows: bool = False


class Parser(argparse.ArgumentParser):
    """Reads the line of one command. Flags may stand among the words; names of flags cannot be shortened.

    `description` says what the command does, `epilog` holds details, examples and exit codes. A command whose first
    word chooses among several line-ups of flags declares each as a verb.
    """

    def __init__(self, prog: str, description: str = "", epilog: str = "", words: Words | None = None) -> None:
        super().__init__(prog=prog, description=description, epilog=epilog, add_help=False, allow_abbrev=False)
        self.words = words or Words()
        self.verbs: dict[str, Parser] = {}
        self.prints_help = True
        """Whether `--help` prints `format_help()`; else it is a flag that the command declares and reads."""
        self.bare_exit: int | None = None
        """The exit code after the help that is printed for no arguments at all; None: that is a legal line."""

    def add_verb(self, name: str, description: str = "", words: Words | None = None) -> "Parser":
        """Declare what can follow the word `name`; returns its parser, which takes the flags."""
        self.verbs[name] = Parser(f"{self.prog} {name}", description, words=words)
        return self.verbs[name]

    def add_results(self, purpose: str = "a results folder") -> None:
        """Declare `--results DIR`."""
        self.add_argument("--results", metavar="DIR", default=RESULTS, help=f"{purpose} (default {RESULTS})")

    def read(self, arguments: Sequence[str]) -> argparse.Namespace:
        """The flags of a line, with `words`, the others in their order, and `verb` where there are verbs.

        Raises UserError for whatever is not declared.
        """
        if self.verbs:
            verb, *rest = arguments or [""]
            if verb not in self.verbs:
                raise UserError(f"unknown {self._command} {verb}: {closest(verb, self.verbs)}")
            return argparse.Namespace(**vars(self.verbs[verb].read(rest)), verb=verb)
        flags, words = self.parse_known_args(arguments)
        for word in words:
            if word.startswith("-"):
                name = word.partition("=")[0]
                self.error(f"unknown flag {name}: {closest(name, self.flags())}")
            if not self.words.usage:
                self.error(f"cannot read {word}: legal: {', '.join(self.flags())}")
        flags.words = words
        return flags

    def asks_for_help(self, arguments: Sequence[str]) -> bool:
        """Whether --help stands on a line, and not behind a flag that takes the rest of it."""
        greedy = [
            flag for action in self._actions if action.nargs == argparse.REMAINDER for flag in action.option_strings
        ]
        return any(argument in HELP for argument in takewhile(lambda argument: argument not in greedy, arguments))

    def flags(self) -> list[str]:
        """All flags of the command and of its verbs."""
        own = [flag for action in self._shown for flag in action.option_strings]
        own += [flag for verb in self.verbs.values() for flag in verb.flags()]
        return sorted({*own, HELP[-1]})

    def values_of(self, flag: str) -> list[str] | None:
        """What can follow a flag: its choices, or a metavar in small letters. Empty for files, folders and free text;
        None for a word that is no flag with a value.
        """
        action = self._option_string_actions.get(flag)
        if action is None or action.nargs == 0:
            return None
        if action.choices is not None:
            return list(map(str, action.choices))
        literal = str(action.metavar)
        return literal.split("|") if literal.islower() else []

    def error(self, message: str) -> NoReturn:
        """Raise UserError instead of printing a usage text and leaving."""
        raise UserError(f"{self._command}: {message}; see kvbench {self._command.split()[0]} --help")

    def format_help(self) -> str:
        """The help text: lines of usage, what the command does, its flags, the epilog."""
        parsers = list(self.verbs.values()) or [self]
        usages = [one._usage() + (f": {one.description}" if self.verbs else "") for one in parsers]
        generated = [wrapped("\n".join(usages)).replace(NO_BREAK, " "), wrapped(_flag_lines(parsers))]
        parts = [generated[0], on_screen(self.description or ""), generated[1], on_screen(self.epilog or "")]
        return "\n\n".join(part.strip("\n") for part in parts if part.strip()) + "\n"

    @property
    def _command(self) -> str:
        return self.prog.removeprefix("kvbench ")

    @property
    def _shown(self) -> list[argparse.Action]:
        return [action for action in self._actions if action.help != argparse.SUPPRESS]

    def _usage(self) -> str:
        written = (_written(action) if action.required else f"[{_written(action)}]" for action in self._shown)
        flags = (flag.replace(" ", NO_BREAK) for flag in written)
        return " ".join(filter(None, (self.prog, self.words.usage, *flags)))

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            self.error(f"{action.option_strings[-1]} {value}: {closest(str(value), map(str, action.choices))}")


def _written(action: argparse.Action) -> str:
    """A flag with what follows it."""
    name = max(action.option_strings, key=len)
    if action.nargs == 0:
        return name
    return f"{name} {action.metavar or '|'.join(map(str, action.choices or (action.dest.upper(),)))}"


def _flag_lines(parsers: Sequence[Parser]) -> str:
    """A line for each flag that has something to say, also where several verbs have it."""
    meanings = {_written(action): action.help for parser in parsers for action in parser._shown if action.help}
    width = max(map(len, meanings), default=0)
    return "\n".join(f"  {flag:<{width}}   {meaning}" for flag, meaning in meanings.items())


def on_screen(text: str) -> str:
    """A help text folded for the screen; as it is where there is none."""
    return wrapped(text) if sys.stdout.isatty() or "COLUMNS" in os.environ else text


def wrapped(text: str) -> str:
    """A help text folded for the screen, or for 120 columns."""
    width = shutil.get_terminal_size((WIDTH, 24)).columns
    return "\n".join(refolded(text, width))


def refolded(text: str, width: int) -> Iterator[str]:
    """The lines of a help text of at most so many columns, examples and single words aside."""
    for block in _blocks(text.splitlines()):
        first, *others = block
        term = TERM.fullmatch(first)
        if not first or EXAMPLE.match(first):
            yield from _example(first, width)
        elif term:
            indent = min(len(term["head"]), width // 2)
            meaning = " ".join(" ".join([term["meaning"], *others]).split())
            yield from _wrapped(term["head"] + meaning, width, "", " " * indent)
        else:
            left = " " * (len(first) - len(first.lstrip()))
            rest = left + "    " * first.startswith("kvbench ")
            yield from _wrapped(" ".join(line.strip() for line in block), width, left, rest)


def _example(line: str, width: int) -> Iterator[str]:
    """A command in lines that a shell takes for one."""
    end = line.rfind(" ", CONTINUED, width - 2)
    if len(line) <= width or end < 0 or "#" in line:
        yield line
        return
    yield f"{line[:end]} \\"
    yield from _example(" " * CONTINUED + line[end + 1 :], width)


def _wrapped(text: str, width: int, first: str, rest: str) -> list[str]:
    return textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )


def _blocks(lines: Sequence[str]) -> Iterator[list[str]]:
    """Lines that belong together: a paragraph, a word with its meaning, an example, a blank line."""
    block: list[str] = []
    for line in lines:
        if block and _continues(block[0], line):
            block.append(line)
        else:
            if block:
                yield block
            block = [line]
    if block:
        yield block


def _continues(first: str, line: str) -> bool:
    """Whether a line belongs to the block that begins with `first`."""
    if not first or not line or EXAMPLE.match(first):
        return False
    if line.startswith(" " * CONTINUED):
        return True
    return not first.startswith(" ") and not line.startswith((" ", "kvbench ", "Exit code"))
