"""`kvbench compare A B`: two folders, or two selections of one, sample by sample. No model, no torch."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from kvbench.cli.errors import ExitCode
from kvbench.cli.parser import PASS_AT, Parser, Words, split_settings
from kvbench.cli.terminal import tell, tell_written, warner
from kvbench.report.report_file import FORMATS
from kvbench.support.errors import UserError


def declare(parser: Parser) -> None:
    """Add the flags of the command."""
    parser.description = """
The mean difference B - A over the samples that both sides have: interval, tests, verdict. A and B are folders, two \
selections of the rows of one folder (--results), or folders with a selection each.
"""
    parser.epilog = """
A SELECTION is a list of conditions without spaces, KEY=VALUE[,VALUE][,KEY=VALUE]; a KEY is a column of rows or a \
setting of cells (policy.window). alpha: the chance of any false verdict in the table. relevant: the smallest \
difference of rates that matters (0.1: 10 points).

  kvbench compare --results results/runs policy=snapkv,score=attn policy=snapkv,score=obcache_joint
  kvbench compare results/before results/after policy=snapkv,budget=0.1,0.2 --format markdown
"""
    parser.bare_exit = ExitCode.USAGE
    usage = "[DIR_A DIR_B] [SELECTION [SELECTION]] [alpha=0.05] [relevant=0.1]"
    parser.words = Words(usage, settings=("alpha=", "relevant="), selects_rows=True)
    parser.add_results("the folder of both selections", default=None)
    parser.add_partial()
    parser.add_argument("--format", metavar="|".join(FORMATS), default="text")
    parser.add_argument("--pass-at", metavar="K", type=int, help=PASS_AT)
    parser.add_argument("--out", metavar="FILE", type=Path, help="write to a file instead of the screen")


def main(flags: argparse.Namespace) -> int:
    """Print a comparison. Raises UserError for bad arguments and MissingFile where there are no rows."""
    from kvbench.report.compare.compare import ALPHA, RELEVANT, compare, report_of
    from kvbench.report.compare.paired_rows import sides
    from kvbench.report.formats.emit import write_report
    from kvbench.report.report_file import check_format
    from kvbench.report.stats.pass_at import pass_at

    check_format(flags.format, FORMATS)
    settings, words = shares(flags.words, {"alpha": ALPHA, "relevant": RELEVANT})
    both = sides(words, flags.results, warner(flags.partial))
    if flags.pass_at is not None:
        both = [replace(side, rows=pass_at(side.rows, flags.pass_at, side.describe)) for side in both]
    comparison = compare(*both, alpha=settings["alpha"], relevant=settings["relevant"])
    write_report(report_of(comparison), flags.format, flags.out or sys.stdout)
    tell_written(flags.out)
    if not any(line.n for line in comparison.lines):
        tell("no sample has a value on both sides: nothing was compared")
        return ExitCode.INCOMPLETE
    return ExitCode.OK


def shares(words: Sequence[str], defaults: dict[str, float]) -> tuple[dict[str, float], list[str]]:
    """Return settings that are shares between 0 and 1, and the other words. Raises UserError for other values."""
    texts, other_words = split_settings(words, defaults)
    settings = dict(defaults)
    for key, value in texts.items():
        try:
            settings[key] = float(value)
        except ValueError:
            settings[key] = 0.0
        if not 0 < settings[key] < 1:
            raise UserError(f"{key}={value}: allowed: a number between 0 and 1, such as {key}={defaults[key]:g}")
    return settings, other_words
