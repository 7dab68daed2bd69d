"""`kvbench report html`: one page of rows that needs no network."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from kvbench.cli.errors import ExitCode
from kvbench.cli.parser import Parser, Words
from kvbench.cli.report import ROWS, SELECTION, settings_of, where_of
from kvbench.cli.terminal import tell_written, warner
from kvbench.support.errors import UserError

if TYPE_CHECKING:
    from kvbench.records.lines import Warn
    from kvbench.report.frames import Source
    from kvbench.report.selection import Where


def declare(parser: Parser) -> None:
    """Add the flags of the report."""
    parser.words = Words(f"[samples=20] {SELECTION}", settings=("samples=",), selects_rows=True)
    parser.add_results(ROWS)
    parser.add_partial()
    parser.add_argument("--out", metavar="FILE", type=Path, required=True)


def main(flags: argparse.Namespace) -> int:
    """Write the page. Raises UserError for a setting that is not allowed, MissingFile where there are no rows."""
    settings = settings_of(flags.words)
    samples = settings.pop("samples", "20")
    if not samples.isdecimal():
        raise UserError(f"samples={samples}: allowed: 0 or more, the number of samples per cell that the page holds")
    write(flags.results, flags.out, warner(flags.partial), where_of(settings), int(samples))
    tell_written(flags.out)
    return ExitCode.OK


def write(source: "Source", out: Path, warn: "Warn", where: "Where | None" = None, samples: int = 20) -> None:
    """Write the page of rows into a file. samples: of each cell, to read. Raises MissingFile without rows."""
    from kvbench.extras.view.page import write_page

    write_page(source, out, warn, where, samples)
