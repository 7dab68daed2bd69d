"""`kvbench probe NAME`: judge scores by arrays, not by answers; run what is missing, print a table."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from kvbench.cli.errors import Exit, tracebacks_in
from kvbench.cli.terminal import tell
from kvbench.cli.usage import Parser, show
from kvbench.support.errors import UserError
from kvbench.support.nearest import closest

DEFAULT = "results/probes"
FORMATS = ("text", "markdown", "csv", "json")
RETRY = "--retry-errors"
USAGE = """kvbench probe NAME [settings of kvbench run] [probe.KEY=VALUE] [--results DIR] [--retry-errors]
                   [--format text|markdown|csv|json] [--out FILE] [--by COLUMN,COLUMN] [--plot FILE.pdf|png|svg]

  kvbench probe oracle_recall task.samples=5 score=attn,obcache_joint,caote budget=40 probe.windows=1,16,256
  kvbench probe layer_loss policy=ada_snapkv,lava_uniform budget=128 --by layer,quantity --format markdown
  kvbench probe head_scores score=kvzip --plot heads.png

Probes: PROBES (kvbench list probes says what each is).
What a probe is asked without saying so is in its file, conf/probe/NAME.yaml: a policy or score of the command line
takes the place of that one. Numbers go to DIR/probes/*.parquet (default results/probes), one file a sample and cell;
the same command resumes. --by says what the table keeps apart beside the cells: layer, head, window, recent, position,
sample, quantity; all else is averaged within a sample. --retry-errors measures samples again that failed.
Exit code 4: some samples have failed.
"""


def main(arguments: Sequence[str]) -> int:
    """Run a probe and print its table. Raises ValueError for bad arguments."""
    from kvbench.config.compose import options

    if not arguments or any(argument in ("-h", "--help") for argument in arguments):
        show(USAGE.replace("PROBES", ", ".join(options("probe"))))
        return Exit.OK
    flags = _flags(arguments)
    name, *words = flags.words
    if name not in options("probe"):
        raise UserError(f"unknown probe {name}: {closest(name, options('probe'))}")
    if flags.format not in FORMATS:
        raise UserError(f"--format {flags.format}: {closest(flags.format, FORMATS)}")
    return _run(name, words, flags)


def _flags(arguments: Sequence[str]) -> argparse.Namespace:
    parser = Parser("probe")
    parser.add_argument("--results", type=Path)
    parser.add_argument("--format", default="text")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--by")
    parser.add_argument("--plot", type=Path)
    parser.add_argument(RETRY, action="store_true")
    parser.add_argument("words", nargs="+")
    return parser.parse_intermixed_args(list(arguments))


def _run(name: str, words: Sequence[str], flags: argparse.Namespace) -> int:
    from kvbench.cli.progress import progress
    from kvbench.probes.compose import asked
    from kvbench.probes.run import run_probe
    from kvbench.records.probed import probed
    from kvbench.report.plots.canvas import check_file
    from kvbench.report.tables.probe import KEPT, print_probed

    found, results = asked(name, words, flags.results, DEFAULT)
    probe = found.probe
    by = tuple(flags.by.split(",")) if flags.by else probe.by
    for column in by:
        if column not in KEPT:
            raise UserError(f"--by {column}: {closest(column, KEPT)}")
    across = probe.across if probe.across in (*by, "quantity") else "quantity"
    picture = None if flags.plot is None else check_file(flags.plot)
    todo = found.plan(results, flags.retry_errors)
    _announce(len(found.cells), todo.rows, todo.rows_to_do, results.path)
    if todo.rows_to_do:
        with tracebacks_in(results), progress(todo) as shown:
            run_probe(found, todo, results, shown)
    numbers = probed(results.path, found.samples)
    print_probed(numbers, by, across, flags.format, flags.out or sys.stdout)
    if picture is not None:
        from kvbench.report.plots.probe import draw_probed

        draw_probed(numbers, by, picture)
    return Exit.INCOMPLETE if any(numbers["error"].to_pylist()) else Exit.OK


def _announce(cells: int, rows: int, todo: int, folder: Path) -> None:
    text = f"{cells} cell{'s' * (cells != 1)}, "
    if todo:
        had = f" ({rows - todo} are there already)" if todo < rows else ""
        text += f"{todo} of cells x samples to measure{had}; numbers in {folder}"
    else:
        text += f"all {rows} of cells x samples are in {folder}"
    tell(text)
