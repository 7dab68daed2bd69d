"""`kvbench board`: methods of several results folders ranked at equal measured bytes. No model, no torch."""

import argparse
import sys
from pathlib import Path

from kvbench.cli.compare import shares
from kvbench.cli.errors import ExitCode
from kvbench.cli.parser import Parser, Words, split_settings
from kvbench.cli.terminal import say, screen, tell, warner
from kvbench.support.errors import UserError
from kvbench.support.quantity import shortened


def declare(parser: Parser) -> None:
    """Add the flags of the command."""
    parser.description = """
Rank the methods of results folders by their paired difference to the full cache where they hold equally many measured \
bytes, with intervals and groups that no test tells apart.
"""
    parser.epilog = """
  kvbench board results/reference results/smollm2 --out build/board
  kvbench board results/baseline results/mine task=ruler/* at=0.1,0.2

A DIR is a results folder whose manifest.json is true (kvbench pack writes it) or a folder of Parquet files of rows. \
Cells that an earlier one has too are checked by the gate; nothing is written if that fails. at: shares of the bytes \
of the full cache. alpha: the chance of any false difference in a table. A SELECTION (as of kvbench compare) restricts \
all.

Exit codes: 0 written, 2 a file was changed or a manifest is missing, 3 a folder is missing, 4 nothing can be ranked, \
5 the gate failed.
"""
    parser.bare_exit = ExitCode.USAGE
    usage = "DIR|FILE.parquet ... [SELECTION] [at=0.1,0.2] [alpha=0.05]"
    parser.words = Words(usage, settings=("at=", "alpha="), selects_rows=True)
    parser.add_partial()
    parser.add_argument("--out", metavar="DIR", type=Path, help="write index.html and board.csv instead of the screen")


def main(flags: argparse.Namespace) -> int:
    """Print or write a board. Raises UserError for bad arguments, MissingFile and NothingSelected as reading does."""
    from kvbench.extras.board.board import LINES, PAGE, board, report_of, write_board
    from kvbench.extras.board.ranking import ALPHA, SIZES
    from kvbench.report.compare.gate import FAILED
    from kvbench.report.formats.emit import write_report
    from kvbench.report.selection import conditions, is_selection

    share, words = shares(flags.words, {"alpha": ALPHA})
    settings, words = split_settings(words, ("at",))
    sizes = _sizes(settings["at"]) if "at" in settings else SIZES
    selections = [word for word in words if is_selection(word)]
    sources = [word for word in words if not is_selection(word)]
    if not sources or len(selections) > 1:
        raise UserError(f"board takes folders and at most one selection; got {' '.join(flags.words) or 'nothing'}")
    leaderboard = board(sources, warner(flags.partial), conditions("".join(selections)), sizes, share["alpha"])
    if failed := [gate for gate in leaderboard.gates if gate.verdict == FAILED]:
        for gate in failed:
            findings = [str(finding) for finding in gate.findings]
            tell(f"{gate.current} against {gate.baseline}: {shortened(findings, 3)}")
        return ExitCode.GATE
    if flags.out is None:
        write_report(report_of(leaderboard), "text", sys.stdout)
    else:
        write_board(leaderboard, flags.out)
        say(screen(), f"wrote {flags.out / PAGE} and {flags.out / LINES}")
    return ExitCode.OK


def _sizes(text: str) -> list[float]:
    """Shares of the full cache's bytes. Raises UserError for anything else."""
    try:
        sizes = sorted({float(part) for part in text.split(",")})
    except ValueError:
        sizes = [0.0]
    if not all(0 < size <= 1 for size in sizes):
        raise UserError(f"at={text}: allowed: shares of the full cache's bytes above 0 and up to 1, as at=0.1,0.2")
    return sizes
