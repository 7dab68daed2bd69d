"""`kvbench export`: rows for other programs. No model, no torch."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from kvbench.cli.errors import Exit
from kvbench.cli.report import settings_of, where_of
from kvbench.cli.terminal import tell, warn
from kvbench.cli.usage import Parser, show

USAGE = """kvbench export --format github-benchmark|junit|markdown|parquet [--results DIR] [--out FILE]
               [what=accuracy|bytes|seconds] [COLUMN=VALUE,...]

  kvbench export --format github-benchmark --out accuracy.json
  kvbench export --format github-benchmark what=bytes policy=snapkv,h2o
  kvbench export --format junit --results results/runs --out cells.xml
  kvbench export --format parquet --out rows.parquet

github-benchmark is the list that benchmark-action/github-action-benchmark charts: what=accuracy with its tool
customBiggerIsBetter, what=bytes and what=seconds with customSmallerIsBetter. COLUMN=VALUE,... selects rows as in
kvbench report. --results names the folder of a run, or a Parquet file of rows. Exit code 4: no row was selected.
"""


def main(arguments: Sequence[str]) -> int:
    """Export a results folder. Raises ValueError for bad arguments and FileNotFoundError where there are no rows."""
    if not arguments or any(argument in ("-h", "--help") for argument in arguments):
        show(USAGE)
        return Exit.OK if arguments else Exit.USAGE
    parser = Parser("export")
    parser.add_argument("--results", default="results/runs")
    parser.add_argument("--format", required=True)
    parser.add_argument("--out", type=Path)
    parser.add_argument("settings", nargs="*")
    asked: argparse.Namespace = parser.parse_intermixed_args(arguments)
    from kvbench.report.export import export
    from kvbench.report.selection import NothingSelected

    settings = settings_of(asked.settings)
    what = settings.pop("what", "accuracy")
    try:
        export(asked.results, asked.format, asked.out or sys.stdout, what, warn, where_of(settings))
    except NothingSelected as empty:
        tell(f"nothing to export: {empty}")
        return Exit.INCOMPLETE
    return Exit.OK
