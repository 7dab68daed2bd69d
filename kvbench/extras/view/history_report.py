"""`kvbench report history`: one page of runs, and a verdict on the newest of them."""

import argparse
from pathlib import Path

from kvbench.cli.errors import ExitCode
from kvbench.cli.parser import Parser, Words
from kvbench.cli.terminal import tell, tell_written, warner
from kvbench.support.errors import UserError
from kvbench.support.quantity import shortened


def declare(parser: Parser) -> None:
    """Add the flags of the report."""
    parser.words = Words("DIR|FILE.parquet ...")
    parser.add_partial()
    flag = parser.add_argument
    flag("--out", metavar="FILE", type=Path, required=True)
    flag("--json", metavar="FILE", type=Path, help="status of every run, and since which run it has failed")
    flag("--junit", metavar="FILE", type=Path, help="one test case per cell of the newest run")
    flag("--anchor", metavar="RUN", help="the number or name of the fixed run (1, the oldest)")
    flag("--no-fail", action="store_true", help="exit code 0 also if the newest run fails")


def main(flags: argparse.Namespace) -> int:
    """Write the page; exit code 5 if the newest run fails. Raises UserError for a line without runs."""
    from kvbench.extras.view.history import write_history
    from kvbench.report.compare.gate import FAILED
    from kvbench.report.stats.verdicts import INCONCLUSIVE

    if not flags.words:
        raise UserError("a history is a page of runs: kvbench report history DIR DIR --out history.html")
    warn = warner(flags.partial)
    newest = write_history(flags.words, flags.out, warn, flags.json, flags.junit, flags.anchor)
    if newest.status in (FAILED, INCONCLUSIVE):
        beside = f"{INCONCLUSIVE}: " if newest.status == FAILED else ""
        reasons = [*(newest.findings or ()), *(f"{beside}{text}" for text in newest.open)]
        tell(f"{newest.label}: {newest.status}: {shortened(reasons, 1)}")
    tell_written(flags.out)
    return ExitCode.GATE if newest.status == FAILED and not flags.no_fail else ExitCode.OK
