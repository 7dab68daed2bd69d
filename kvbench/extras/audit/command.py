"""`kvbench audit means.csv`: how sure differences of printed means are, from the means and n alone."""

import argparse
import sys
from pathlib import Path

from kvbench.cli.errors import ExitCode
from kvbench.cli.parser import Parser, Words
from kvbench.cli.terminal import tell_written
from kvbench.report.report_file import FORMATS, format_of
from kvbench.support.errors import UserError


def declare(parser: Parser) -> None:
    """Add the flags of the command."""
    parser.description = """
Say how sure the differences of a printed table are, from its means and numbers of prompts alone. Every method is \
compared with its host: p between its possible bounds, the prompts that would settle it, and a verdict (decided, \
depends, inconclusive).
"""
    parser.epilog = """
  kvbench audit means.csv
  kvbench audit means.csv --format markdown --out audit.md

means.csv has the columns method, host, task, mean and n; a host is a line whose host is itself or blank. n may be \
13x500 (a mean of 13 tasks of 500 prompts) or blank (not known: no verdict). Optional columns: unit (percent, rate, \
or a name of scores without bounds, such as perplexity), scores (binary, parts=4, f1, rouge, code, graded; else \
known from the names of LongBench, and right or wrong), prompts (the name of the set that was read), contexts \
(distinct texts behind n), model, context_length, budget, sd (of the scores of a prompt), decimals (of the table). \
kvbench/extras/audit/audit.md explains the method.
"""
    parser.bare_exit = ExitCode.USAGE
    parser.words = Words("FILE.csv")
    parser.add_argument("--format", metavar="|".join(FORMATS))
    parser.add_argument("--out", metavar="FILE", type=Path, help="write to a file instead of the screen")


def main(flags: argparse.Namespace) -> int:
    """Print the audit. Raises UserError for bad arguments and files, MissingFile without the file."""
    from kvbench.extras.audit.means_file import comparisons
    from kvbench.extras.audit.table import report_of
    from kvbench.report.formats.emit import write_report
    from kvbench.report.report_file import check_format

    if len(flags.words) != 1:
        raise UserError(f"audit reads one file, not {len(flags.words)}: kvbench audit means.csv")
    form = flags.format or format_of(flags.out, FORMATS)
    check_format(form, FORMATS)
    file = Path(flags.words[0])
    pairs, bests, notes = comparisons(file)
    write_report(report_of(f"Audit of {file.name}", pairs, bests, notes), form, flags.out or sys.stdout)
    tell_written(flags.out)
    return ExitCode.OK
