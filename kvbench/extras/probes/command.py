"""`kvbench probe NAME`: judge scores by arrays, not by answers; run what is missing, print a table."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kvbench.cli.errors import ExitCode
from kvbench.cli.parser import Parser, Words
from kvbench.cli.terminal import tell, tell_written
from kvbench.extras.probes import DEFAULT
from kvbench.report.report_file import FORMATS
from kvbench.support.errors import UserError
from kvbench.support.plugins import items
from kvbench.support.quantity import count_noun
from kvbench.support.text import closest
from kvbench.work.failures import tracebacks_in

if TYPE_CHECKING:
    from kvbench.extras.probes.run import Probing
    from kvbench.records import ResultsFolder
    from kvbench.run.plan import Plan


def declare(parser: Parser) -> None:
    """Add the flags of the command."""
    parser.description = (
        "Measure the scores themselves, not answers: how well they predict the true error of each eviction. Prints "
        "a table."
    )
    parser.epilog = f"""
  kvbench probe oracle_recall task.samples=5 score=attn,obcache_joint,caote budget=40 probe.windows=1,16,256
  kvbench probe layer_loss policy=ada_snapkv,lava_uniform budget=128 --by layer,quantity --format markdown
  kvbench probe head_scores score=kvzip --plot heads.png

Probes (see kvbench list probes): {", ".join(items("probe"))}. A probe has a usual policy and score, \
which the command line may replace. Numbers go to DIR/probes/*.parquet, one file per sample and cell; the same command \
resumes. Columns that --by does not name are averaged within a sample.
Exit code 4: some samples have failed.
"""
    parser.bare_exit = ExitCode.OK
    parser.words = Words(
        "NAME [settings of kvbench run] [probe.KEY=VALUE]",
        lambda before: () if before else items("probe"),
        groups=("model", "task", "policy", "score", "data"),
        settings=("budget=", "seed="),
    )
    parser.add_results(f"a results folder (default {DEFAULT})", default=None)
    parser.add_argument("--retry-errors", action="store_true", help="measure failed samples again")
    parser.add_argument("--format", choices=FORMATS, default="text")
    parser.add_argument("--out", metavar="FILE", type=Path, help="write to a file instead of the screen")
    parser.add_argument(
        "--by",
        metavar="COLUMN,COLUMN",
        help=(
            "the columns that are not averaged, beside the columns of cells: layer, head, window, recent, position, "
            "sample, quantity"
        ),
    )
    parser.add_argument("--plot", metavar="FILE.pdf|png|svg", type=Path, help="draw the numbers")


def main(flags: argparse.Namespace) -> int:
    """Run a probe and print its table. Raises UserError for bad arguments."""
    name, *words = flags.words or [""]
    from kvbench.extras.probes.numbers import probed
    from kvbench.extras.probes.run import probing_of
    from kvbench.extras.probes.table import GROUPS, report_of
    from kvbench.report.formats.emit import write_report
    from kvbench.report.plots.canvas import check_file
    from kvbench.report.tables.observation_note import differing

    probing, results = probing_of(name, words, tell, flags.results and Path(flags.results))
    probe = probing.probe
    by = tuple(flags.by.split(",")) if flags.by else probe.by
    for column in by:
        if column not in GROUPS:
            raise UserError(f"--by {column}: {closest(column, GROUPS)}")
    across = probe.across if probe.across in (*by, "quantity") else "quantity"
    picture = None if flags.plot is None else check_file(flags.plot)
    todo = probing.plan(results, flags.retry_errors)
    cells = count_noun(len(probing.cells), "cell")
    if todo.rows_to_do:
        had = f" ({todo.rows - todo.rows_to_do} are there already)" if todo.rows_to_do < todo.rows else ""
        tell(f"{cells}, {count_noun(todo.rows_to_do, 'measurement')} to run{had}; numbers in {results.path}")
        measure(probing, todo, results)
    else:
        tell(f"{cells}, all {count_noun(todo.rows, 'measurement')} are in {results.path}")
    numbers = probed(results.path, probing.samples)
    has_windows = numbers["window"].null_count < len(numbers)  # then the probe chose them, not the policies
    note = "" if has_windows else differing(numbers["cell"].to_pylist(), results.read_cell)
    write_report(report_of(numbers, by, across, note=note), flags.format, flags.out or sys.stdout)
    tell_written(flags.out)
    if picture is not None:
        from kvbench.extras.probes.plot import draw_probed

        draw_probed(numbers, by, picture, note=note)
    return ExitCode.INCOMPLETE if any(numbers["error"].to_pylist()) else ExitCode.OK


def measure(probing: "Probing", todo: "Plan", results: "ResultsFolder") -> None:
    """Measure what is missing of a probe, with its progress on stderr."""
    from kvbench.extras.probes.run import run_probe
    from kvbench.work.progress import progress

    with tracebacks_in(results), progress(todo) as shown:
        run_probe(probing, todo, results, shown)
