"""`kvbench report table|rows`: reads rows, prints them. No model, no torch."""

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from kvbench.cli.errors import closest

USAGE = """kvbench report table [--results DIR] [--format text|markdown|csv] [rows=policy,score] [cols=budget]
kvbench report rows  [--results DIR] [--format jsonl|csv]

  kvbench report table --results results/runs --format markdown
  kvbench report rows --results results/runs --format jsonl
"""
DEFAULT_FORMAT = {"table": "text", "rows": "jsonl"}


class Parser(argparse.ArgumentParser):
    """An argument parser whose complaints are one line."""

    def error(self, message: str) -> NoReturn:
        """Raise ValueError instead of printing a usage text."""
        raise ValueError(f"report: {message}; see kvbench report --help")


def main(arguments: Sequence[str]) -> int:
    """Print a report. Raises ValueError for bad arguments and FileNotFoundError where there are no rows."""
    if not arguments or any(argument in ("-h", "--help") for argument in arguments):
        print(USAGE, end="")
        return 0
    what, *rest = arguments
    if what not in DEFAULT_FORMAT:
        raise ValueError(f"unknown report {what}: {closest(what, DEFAULT_FORMAT)}")
    parser = Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("--results", default="results/runs")
    parser.add_argument("--format", default=DEFAULT_FORMAT[what])
    parser.add_argument("settings", nargs="*")
    asked = parser.parse_intermixed_args(rest)
    settings = _settings(asked.settings, ("rows", "cols") if what == "table" else ())
    if what == "table":
        from kvbench.report.table import print_table

        rows, cols = settings.get("rows"), settings.get("cols")
        print_table(asked.results, asked.format, sys.stdout, rows, cols, warn=warner())
    else:
        from kvbench.report.rows import print_rows

        print_rows(asked.results, asked.format, sys.stdout, warn=warner())
    return 0


def warner() -> Callable[[str], None]:
    """Prints each warning as a line on stderr."""
    return lambda text: print(f"kvbench: warning: {text}", file=sys.stderr)


def _settings(words: Sequence[str], legal: Sequence[str]) -> dict[str, str]:
    settings = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or key not in legal:
            known = f"legal: {', '.join(f'{name}=...' for name in legal)}" if legal else "none is legal here"
            raise ValueError(f"unknown setting {word}: {known}")
        settings[key] = value
    return settings
