"""A planned sweep as a command makes it: its progress on stderr, then the table of its cells."""

import sys
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa

from kvbench.cli.errors import ExitCode, guarded
from kvbench.cli.terminal import tell, warn
from kvbench.records.rows import fetched
from kvbench.run.plan import Plan
from kvbench.run.shard import Shard
from kvbench.run.signals import handling, stop_at_once
from kvbench.run.stale import Stale
from kvbench.support.named import member, named
from kvbench.support.quantity import count_noun
from kvbench.support.shared_gpus import has_launcher
from kvbench.tasks.task import Task
from kvbench.work.logger import Logger, NoLogger
from kvbench.work.planned import Sweep, plan_sweep
from kvbench.work.progress import progress
from kvbench.work.sweep import RunOutput, make, recorded_rows

SCREEN = RunOutput(tell, progress)
"""The screen of commands: stderr."""


@dataclass(frozen=True)
class PartOfSweep:
    """A part of the sweep that `arguments` ask for, made in the process that calls it; returns its exit code.

    logger: of the command, which `arguments` do not name.
    """

    arguments: tuple[str, ...]
    retry: bool
    part: Shard
    stale: Stale = "stop"
    logger: Logger = field(default_factory=NoLogger)

    def __call__(self) -> int:
        return guarded(
            lambda: run_sweep(plan_sweep(self.arguments, tell, self.retry, self.part, stale=self.stale), self.logger)
        )


def run_sweep(sweep: Sweep, logger: Logger | None = None) -> int:
    """Run what is missing of a sweep, print its table and mirror its rows. Exit code 4 if some samples have failed.

    Raises StopRequested for a signal before the table is printed. A part of a sweep leaves a signal after its last row
    to its scheduler.
    """
    flags = {"--retry-errors": sweep.retry, f"--stale={sweep.stale}": sweep.stale != "stop"}
    command = ("kvbench", "run", *sweep.arguments, *(flag for flag, is_set in flags.items() if is_set))
    logger = logger or NoLogger()
    part = partial(PartOfSweep, sweep.arguments, sweep.retry, stale=sweep.stale, logger=logger)
    if sweep.part is None and not has_launcher():  # one process warns for all
        warn_of(sweep.plan)
    with handling(() if sweep.part else sweep.launcher.signals, stop_at_once):
        code, ended = make(sweep, command, part, SCREEN)
        if not ended:
            return code
        if sweep.part is not None:  # table and logger are of the whole sweep
            _mirror_whole(sweep, logger)
            return code
        rows = recorded_rows(sweep)
        if not sweep.quiet:
            print_sweep(sweep)
            for hint in named("hint").values() if not sweep.since else ():  # the first run in its folder
                if advice := hint.load()(sweep, partial(recorded_rows, sweep)):
                    tell(advice)
        if not isinstance(logger, NoLogger):
            _mirror(sweep, logger, rows)
    return ExitCode.OK if rows["error"].null_count == rows.num_rows else ExitCode.INCOMPLETE


def warn_of(plan: Plan) -> None:
    """Print the warnings about a plan."""
    for warning in named("warning").values():
        if text := warning.load()(plan):
            warn(text)


def _mirror_whole(sweep: Sweep, logger: Logger) -> None:
    """Mirror a sweep whose last part has ended; the other parts leave that to it."""
    if isinstance(logger, NoLogger):
        return
    rows = sweep.rows(())
    num_missing = sum(sweep.samples.values()) - rows.num_rows
    if not num_missing:
        _mirror(sweep, logger, rows)
    elif not sweep.quiet:
        missing = count_noun(num_missing, "row")
        tell(f"logger={logger.name}: {missing} of other parts are missing; the last part mirrors all")


def _mirror(sweep: Sweep, logger: Logger, rows: pa.Table) -> None:
    """Mirror the rows of a sweep, and print the message of the logger."""
    if (address := logger.mirror(sweep.results, fetched(rows))) is not None and not sweep.quiet:
        tell(address)


def print_sweep(sweep: Sweep) -> None:
    """Print the report of a sweep's rows."""
    from kvbench.report.formats.text import write_text

    report = member("report", sweep.report) or named("report")[Task.report]
    own = {"rows": partial(recorded_rows, sweep)} if report.name == Task.report else {}
    write_text(report.load()(sweep.results.path, lambda text: None, {"cell": [*sweep.samples]}, **own), sys.stdout)
