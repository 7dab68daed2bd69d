"""`kvbench run`: plan what the command line asks for, run what is missing, print the table of its cells."""

import os
import sys
from collections.abc import Sequence

from kvbench.cli.errors import Exit, tracebacks_in
from kvbench.cli.launching import PartOfSweep
from kvbench.cli.progress import progress
from kvbench.cli.signals import stopping
from kvbench.cli.sweep import RETRY, Sweep, sweep
from kvbench.cli.terminal import tell
from kvbench.records import Row, read_rows
from kvbench.run.claims import Sharing
from kvbench.run.launch import Work
from kvbench.run.launch.local import devices
from kvbench.run.plan import Shard, shards_of
from kvbench.run.runner import run
from kvbench.run.timing.meters import energy_meter, visible_gpus
from kvbench.support.errors import UserError
from kvbench.tasks.efficiency import Efficiency

QUIET = "--quiet"
"""The flag that leaves warnings and errors alone to be said."""
SHARD = "--shard"
"""The flag that leaves the other shards to other processes: --shard 2/8."""


def main(arguments: Sequence[str]) -> int:
    """Run a sweep, or hand the line to Hydra when it has one of Hydra's flags (--help, --cfg, -m, ...)."""
    retry, quiet = RETRY in arguments, QUIET in arguments
    rest, part = _shard([argument for argument in arguments if argument not in (RETRY, QUIET)])
    if any(argument.startswith("-") for argument in rest):
        from kvbench.cli.flags import with_flags

        if part is not None:
            raise UserError(f"{SHARD} goes with no other flag than {RETRY} and {QUIET}")
        return with_flags(rest, lambda settings: run_sweep(sweep(settings, retry, quiet=quiet)))
    return run_sweep(sweep(rest, retry, part, quiet))


def run_sweep(asked: Sweep) -> int:
    """Run what is missing of a sweep and print its table. Exit code 4 when some of its samples have failed."""
    from kvbench.report.tables.efficiency import print_efficiency
    from kvbench.report.tables.table import print_table_of

    rows = asked.rows
    _announce(asked)
    if asked.plan.rows_to_do:
        if asked.launcher.name == "slurm":
            asked.results.write_sweep(asked.arguments, asked.samples)  # jobs may start much later
        code = asked.launcher.launch(_work(asked))
        if code is not None and (code not in (Exit.OK, Exit.INCOMPLETE) or asked.launcher.name == "slurm"):
            return code
        failed = _run(asked) if code is None else 0
        if asked.part is not None:  # the table is of the whole sweep
            return Exit.INCOMPLETE if failed else Exit.OK
        rows = read_rows(asked.results, warn=_told_before)
    own = [row for row in rows if asked.holds(row)]  # the folder may hold other sweeps
    if asked.quiet:
        pass
    elif all(isinstance(cell.task, Efficiency) for cell in asked.plan.cells):
        print_efficiency(asked.results.path, "text", sys.stdout, _told_before, {"cell": list(asked.samples)})
    else:
        print_table_of(own, asked.results, sys.stdout)
    asked.logger.mirror(asked.results, own)
    return Exit.INCOMPLETE if any(row.error is not None for row in own) else Exit.OK


def made(asked: Sweep) -> list[Row]:
    """All rows of a sweep, what is missing of them made in this process."""
    _announce(asked)
    rows = asked.rows
    if asked.plan.rows_to_do:
        _run(asked)
        rows = read_rows(asked.results, warn=_told_before)
    return [row for row in rows if asked.holds(row)]


def _run(asked: Sweep) -> int:
    """Make what is missing in this process; returns how many rows have failed."""
    spread = any(group.model.device_map is not None for group in asked.plan.groups)
    with (
        tracebacks_in(asked.results),
        stopping(asked.launcher.signals) as stop,
        progress(asked.plan, asked.quiet) as shown,
    ):
        held = max(1, len(devices(os.environ))) if spread else 1
        meter = energy_meter(visible_gpus()) if asked.plan.rows_to_do else None
        sharing = Sharing(asked.where.lease_seconds, asked.since, held, asked.arguments, asked.samples, stop, meter)
        outcome = run(asked.plan, asked.results, shown, asked.where.kept, sharing)
    shared = f" from {outcome.prefills} prefills of {outcome.tokens_prefilled} tokens" if outcome.prefills else ""
    halved = f"; memory ran out {outcome.halved} times, fewer cells were then held" if outcome.halved else ""
    if not asked.quiet:
        tell(f"{outcome.rows} rows{shared}{halved}")
    return outcome.errors


def _work(asked: Sweep) -> Work:
    """The sweep as a launcher takes it."""
    flags = (RETRY,) if asked.retry else ()

    def tasks(shards: int) -> list[PartOfSweep]:
        return [PartOfSweep(asked.arguments, asked.retry, part) for part in shards_of(asked.plan, shards)]

    return Work(("kvbench", "run", *asked.arguments, *flags), asked.results, tasks)


def _shard(arguments: Sequence[str]) -> tuple[list[str], Shard | None]:
    """The arguments without the flag, and what it says."""
    rest, text = list(arguments), None
    for place, argument in enumerate(arguments):
        if argument == SHARD:
            text = "".join(arguments[place + 1 : place + 2])
            rest = [*arguments[:place], *arguments[place + 2 :]]
        elif argument.startswith(f"{SHARD}="):
            text = argument.partition("=")[2]
            rest.remove(argument)
    if text is None:
        return rest, None
    index, _, of = text.partition("/")
    if not (index.isdecimal() and of.isdecimal()):
        raise UserError(f"{SHARD} {text}: legal: I/N, such as 2/8 for the second of eight")
    return rest, Shard(int(index) - 1, int(of))


def _told_before(warning: str) -> None:
    """Reading the rows for the plan has printed it."""


def _announce(asked: Sweep) -> None:
    if asked.quiet:
        return
    plan = asked.plan
    cells = f"{len(plan.cells)} cell{'s' * (len(plan.cells) != 1)}"
    if asked.part is not None:
        shard = f"shard {asked.part.index + 1}/{asked.part.of}"
        todo = f"{plan.rows_to_do} rows to make from {plan.prefills_to_do} prompts"
        tell(f"{cells}, {shard}: {todo}; results in {asked.results.path}")
        return
    if not plan.rows_to_do:
        tell(f"{cells}, all {plan.rows} rows are in {asked.results.path}")
        return
    had = f" ({plan.rows - plan.rows_to_do} rows are there already)" if plan.rows_to_do < plan.rows else ""
    todo = f"{plan.rows_to_do} rows to make from {plan.prefills_to_do} prompts{had}"
    tell(f"{cells}, {todo}; results in {asked.results.path}")
