"""Help texts: written for 120 columns, folded anew where the screen is narrower. No rich: help answers at once."""

import argparse
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator
from typing import NoReturn

from kvbench.support.errors import UserError
from kvbench.support.text import closest

TERM = re.compile(r"(?P<head> +\S+(?: \S+){0,3} {2,})(?P<said>\S.*)")
"""A flag or a word, two blanks or more, and what it means."""
EXAMPLE = re.compile(r" +(kvbench|eval) ")
CONTINUED = 6
"""Blanks from which on a line goes on with the one before it."""


def show(usage: str) -> None:
    """Print a help text for the screen; as it is where there is none."""
    wide = sys.stdout.isatty() or "COLUMNS" in os.environ
    width = shutil.get_terminal_size().columns if wide else 0
    print("\n".join(refolded(usage, width)) + "\n" if width else usage, end="")


def refolded(usage: str, width: int) -> Iterator[str]:
    """The lines of a help text of at most so many columns, examples and single words aside."""
    for block in _blocks(usage.splitlines()):
        first, *others = block
        told = TERM.fullmatch(first)
        if not first or EXAMPLE.match(first):
            yield from _pasted(first, width)
        elif told:
            indent = min(len(told["head"]), width // 2)
            said = " ".join(" ".join([told["said"], *others]).split())
            yield from _wrapped(told["head"] + said, width, "", " " * indent)
        else:
            left = " " * (len(first) - len(first.lstrip()))
            rest = left + "    " * first.startswith("kvbench ")
            whole = " ".join(line.strip() for line in block)
            yield from _wrapped(whole, width, left, rest)


def _pasted(line: str, width: int) -> Iterator[str]:
    """A command in lines that a shell takes for one."""
    cut = line.rfind(" ", CONTINUED, width - 2)
    if len(line) <= width or cut < 0 or "#" in line:
        yield line
        return
    yield f"{line[:cut]} \\"
    yield from _pasted(" " * CONTINUED + line[cut + 1 :], width)


def _wrapped(text: str, width: int, first: str, rest: str) -> list[str]:
    return textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )


def _blocks(lines: list[str]) -> Iterator[list[str]]:
    """Lines that belong together: a paragraph, a word with its meaning, an example, a blank line."""
    block: list[str] = []
    for line in lines:
        indent = len(line) - len(line.lstrip())
        goes_on = block and block[0] and line.strip() and not EXAMPLE.match(block[0])
        if indent >= CONTINUED:
            goes_on = bool(goes_on)
        elif goes_on:
            same = indent == len(block[0]) - len(block[0].lstrip())
            goes_on = same and not indent and not line.startswith(("kvbench ", "Exit code"))
        if goes_on:
            block.append(line)
        else:
            if block:
                yield block
            block = [line]
    if block:
        yield block


class Parser(argparse.ArgumentParser):
    """Reads the flags of a command; whatever is wrong is a ValueError. Names are not shortened."""

    def __init__(self, command: str) -> None:
        super().__init__(prog=command, add_help=False, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Raise ValueError instead of printing a usage text."""
        wrong = message.partition("unrecognized arguments: ")[2].split()
        if wrong:
            legal = [flag for action in self._actions for flag in action.option_strings]
            name = wrong[0].partition("=")[0]
            message = f"unknown flag {name}: {closest(name, [*legal, '--help'])}"
        raise UserError(f"{self.prog}: {message}; see kvbench {self.prog} --help")
