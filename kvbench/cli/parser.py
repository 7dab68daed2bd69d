"""The flags and words of a command."""

import argparse
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """An argument parser whose complaints are one line."""

    def __init__(self, command: str) -> None:
        super().__init__(prog=command, add_help=False, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Raise ValueError instead of printing a usage text."""
        raise ValueError(f"{self.prog}: {message}; see kvbench {self.prog} --help")
