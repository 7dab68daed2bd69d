"""Flags of commands that have more than two: argparse, with complaints of one line that name the nearest flag."""

import argparse
from typing import NoReturn

from kvbench.support.errors import UserError
from kvbench.support.nearest import closest


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
