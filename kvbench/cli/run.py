"""`kvbench run`: plan what the command line asks for, run what is missing, print the table of its cells."""

import sys
from collections.abc import Sequence

from kvbench.claims import Sharing
from kvbench.cli.errors import Exit, tracebacks_in
from kvbench.cli.progress import progress
from kvbench.cli.signals import stopping
from kvbench.cli.sweep import RETRY, Sweep, sweep
from kvbench.records import read_rows
from kvbench.runner import run

STOP = ("SIGTERM", "SIGUSR1", "SIGUSR2")


def main(arguments: Sequence[str]) -> int:
    """Run a sweep, or hand the line to Hydra when it has one of Hydra's flags (--help, --cfg, -m, ...)."""
    retry = RETRY in arguments
    rest = [argument for argument in arguments if argument != RETRY]
    if any(argument.startswith("-") for argument in rest):
        from kvbench.cli.flags import with_flags

        return with_flags(rest, lambda settings: run_sweep(sweep(settings, retry)))
    return run_sweep(sweep(rest, retry))


def run_sweep(asked: Sweep) -> int:
    """Run what is missing of a sweep. Exit code 4 when some of its samples have failed, now or before."""
    from kvbench.report.table import print_table_of

    plan, rows = asked.plan, asked.rows
    _announce(asked)
    if plan.rows_to_do:
        with tracebacks_in(asked.results), stopping(STOP) as stop, progress(plan) as shown:
            sharing = Sharing(asked.where.lease_seconds, asked.since, 1, asked.arguments, stop)
            outcome = run(plan, asked.results, shown, asked.where.kept, sharing)
        shared = f" from {outcome.prefills} prefills of {outcome.tokens_prefilled} tokens" if outcome.prefills else ""
        halved = f"; memory ran out {outcome.halved} times, fewer cells were then held" if outcome.halved else ""
        print(f"kvbench: {outcome.rows} rows{shared}{halved}", file=sys.stderr)
        rows = read_rows(asked.results, warn=_told_before)
    own = [row for row in rows if asked.holds(row)]  # the folder may hold other sweeps
    print_table_of(own, asked.results, sys.stdout)
    return Exit.INCOMPLETE if any(row.error is not None for row in own) else Exit.OK


def _told_before(warning: str) -> None:
    """Reading the rows for the plan has printed it."""


def _announce(asked: Sweep) -> None:
    plan = asked.plan
    cells = f"{len(plan.cells)} cell{'s' * (len(plan.cells) != 1)}"
    if not plan.rows_to_do:
        print(f"kvbench: {cells}, all {plan.rows} rows are in {asked.results.path}", file=sys.stderr)
        return
    had = f" ({plan.rows - plan.rows_to_do} rows are there already)" if plan.rows_to_do < plan.rows else ""
    print(
        f"kvbench: {cells}, {plan.rows_to_do} rows to make from {plan.prefills_to_do} prompts{had}; "
        f"results in {asked.results.path}",
        file=sys.stderr,
    )
