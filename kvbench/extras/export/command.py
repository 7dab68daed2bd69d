"""`kvbench export`: rows for other programs. No model, no torch."""

import argparse
import sys
from pathlib import Path

from kvbench.cli.errors import ExitCode
from kvbench.cli.parser import Parser, Words
from kvbench.cli.report import ROWS, SELECTION, settings_of, where_of
from kvbench.cli.terminal import tell_written, warner


def declare(parser: Parser) -> None:
    """Add the flags of the command."""
    parser.description = "Means for charts and reports of continuous integration, or all rows."
    parser.epilog = """
  kvbench export --format github-benchmark --out accuracy.json
  kvbench export --format github-benchmark what=bytes policy=snapkv,h2o
  kvbench export --format junit --results results/runs --out cells.xml
  kvbench export --format parquet --out rows.parquet
  kvbench export --format eee --out shared

github-benchmark is the list that benchmark-action/github-action-benchmark charts: what=accuracy with its tool \
customBiggerIsBetter, what=bytes and what=seconds (of one eviction, or of a decoding step of task=efficiency) with \
customSmallerIsBetter. eee is the schema of Every Eval Ever: a file for each model, in the folder that --out names. \
COLUMN=VALUE,... selects rows, as for kvbench report table.
Exit code 4: no row was selected, or with eee none that has a value.
"""
    parser.bare_exit = ExitCode.USAGE
    usage = f"[what=accuracy|bytes|seconds] {SELECTION}"
    parser.words = Words(usage, settings=("what=",), selects_rows=True)
    parser.add_argument("--format", metavar="eee|github-benchmark|junit|markdown|parquet", required=True)
    parser.add_results(ROWS)
    parser.add_partial()
    parser.add_argument("--out", metavar="FILE", type=Path, help="write to a file instead of the screen; eee: a folder")


def main(flags: argparse.Namespace) -> int:
    """Export a results folder. Raises UserError for bad arguments and MissingFile where there are no rows."""
    from kvbench.extras.export.export import export

    settings = settings_of(flags.words)
    quantity = settings.pop("what", "accuracy")
    export(flags.results, flags.format, flags.out or sys.stdout, quantity, warner(flags.partial), where_of(settings))
    tell_written(flags.out)
    return ExitCode.OK
