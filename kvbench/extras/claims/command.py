"""`kvbench claims check FILE`: claims that were written before their rows, and what they say. No model, no torch."""

import argparse
import sys
from pathlib import Path

from kvbench.cli.errors import ExitCode
from kvbench.cli.parser import Parser, Words
from kvbench.cli.terminal import tell, tell_written, warner
from kvbench.report.report_file import FORMATS
from kvbench.support.errors import UserError


def declare(parser: Parser) -> None:
    """Add the flags of the command."""
    parser.description = """
Hold claims that were written down beforehand against rows: each has two sides, tasks, a number of prompts and a test, \
and a family over which p is corrected. Claims whose rows are not all there have no verdict.
"""
    parser.epilog = """
The file is YAML; docs/statistics.md describes it. Commit it before the rows are made: the page says which is older. \
Without any row it is the plan.

  kvbench claims check claims.yaml --results results/runs
  kvbench claims check claims.yaml --results rows.parquet --format markdown --out claims.md

Exit code 4: some claims wait for rows.
"""
    parser.bare_exit = ExitCode.USAGE
    parser.words = Words("check FILE", lambda before: () if before else ("check",))
    parser.add_results("a results folder, or a Parquet file of rows")
    parser.add_partial()
    parser.add_argument("--format", metavar="|".join(FORMATS), default="text")
    parser.add_argument("--out", metavar="FILE", type=Path, help="write to a file instead of the screen")


def main(flags: argparse.Namespace) -> int:
    """Print the page. Raises UserError for a bad file of claims, MissingFile where there is none."""
    from kvbench.extras.claims.answers import Answers
    from kvbench.extras.claims.file import ClaimsFile
    from kvbench.extras.claims.page import report_of
    from kvbench.extras.claims.verdicts import WAITING
    from kvbench.report.formats.emit import write_report
    from kvbench.report.report_file import check_format

    check_format(flags.format, FORMATS)
    if len(flags.words) != 2 or flags.words[0] != "check":
        raise UserError(f"claims takes check and one file, as claims check claims.yaml; got {' '.join(flags.words)}")
    file = ClaimsFile(Path(flags.words[1]))
    report = report_of(file, Answers.read(file.claims, Path(flags.results), warner(flags.partial)))
    write_report(report, flags.format, flags.out or sys.stdout)
    tell_written(flags.out)
    if waiting := sum(record["verdict"] == WAITING for record in report.records):
        tell(f"{waiting} of {len(report.records)} claims wait for rows of {flags.results}")
        return ExitCode.INCOMPLETE
    return ExitCode.OK
