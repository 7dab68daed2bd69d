"""A planned sweep in this process or through its launcher: what is missing is made, the table of its cells printed."""

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import FrameType

import torch

from kvbench.cli.errors import Exit, guarded, tracebacks_in
from kvbench.cli.progress import progress
from kvbench.cli.terminal import tell
from kvbench.config.sweep import Sweep, plan_sweep
from kvbench.models.loading.weights import choose_device
from kvbench.records import Row, read_rows
from kvbench.run.claims import Sharing
from kvbench.run.launch import Task, Work
from kvbench.run.plan import Shard, shards_of
from kvbench.run.runner import run
from kvbench.run.timed import energy_meter
from kvbench.tasks.efficiency import Efficiency


@dataclass(frozen=True)
class PartOfSweep:
    """A part of the sweep that `arguments` ask for, made in the process that calls it; returns its exit code."""

    arguments: tuple[str, ...]
    retry: bool
    part: Shard

    def __call__(self) -> int:
        return guarded(lambda: run_sweep(plan_sweep(self.arguments, tell, self.retry, self.part)))


def run_sweep(sweep: Sweep, table: bool = True) -> int:
    """Run what is missing of a sweep and print its table. Exit code 4 when some of its samples have failed."""
    rows = sweep.rows
    _announce(sweep)
    if sweep.plan.rows_to_do:
        command = ("kvbench", "run", *sweep.arguments, *(("--retry-errors",) if sweep.retry else ()))
        code = launched(sweep, command, partial(PartOfSweep, sweep.arguments, sweep.retry))
        if code is not None and (code not in (Exit.OK, Exit.INCOMPLETE) or sweep.launcher.name == "slurm"):
            return code
        failed = _run(sweep) if code is None else 0
        if sweep.part is not None:  # the table is of the whole sweep
            return Exit.INCOMPLETE if failed else Exit.OK
        rows = read_rows(sweep.results, warn=_ignore)
    rows = [row for row in rows if sweep.holds(row)]  # the folder may hold other sweeps
    if table and not sweep.quiet:
        print_sweep(sweep, rows)
    sweep.logger.mirror(sweep.results, rows)
    return Exit.INCOMPLETE if any(row.error is not None for row in rows) else Exit.OK


def print_sweep(sweep: Sweep, rows: Sequence[Row]) -> None:
    """Print the table of a sweep, whose rows these are."""
    if all(isinstance(cell.task, Efficiency) for cell in sweep.plan.cells):
        from kvbench.report.tables.efficiency import print_efficiency

        print_efficiency(sweep.results.path, "text", sys.stdout, _ignore, {"cell": list(sweep.samples)})
    else:
        from kvbench.report.tables.table import print_table_of

        print_table_of(rows, sweep.results, sys.stdout)


def launched(sweep: Sweep, command: Sequence[str], task: Callable[[Shard], Task]) -> int | None:
    """Start what is missing of a sweep by its launcher, which makes it by `command` or, in parts, by `task`.

    Returns the exit code if it is finished or submitted, None if this process is to make it.
    """
    if sweep.launcher.name == "slurm":
        sweep.results.write_sweep(sweep.arguments, sweep.samples)  # jobs may start much later
    work = Work(command, sweep.results, lambda shards: [task(part) for part in shards_of(sweep.plan, shards)])
    return sweep.launcher.launch(work)


def made(sweep: Sweep) -> list[Row]:
    """All rows of a sweep, what is missing of them made in this process."""
    _announce(sweep)
    rows = sweep.rows
    if sweep.plan.rows_to_do:
        _run(sweep)
        rows = read_rows(sweep.results, warn=_ignore)
    return [row for row in rows if sweep.holds(row)]


def _run(sweep: Sweep) -> int:
    """Make what is missing in this process; returns how many rows have failed."""
    held = {choose_device(group.model) for group in sweep.plan.groups}
    if any(group.model.device_map is not None for group in sweep.plan.groups):
        held |= {torch.device("cuda", index) for index in range(1, torch.cuda.device_count())}
    with (
        tracebacks_in(sweep.results),
        stopping(sweep.launcher.signals) as stop,
        progress(sweep.plan, sweep.quiet) as shown,
    ):
        meter = energy_meter(held) if sweep.plan.rows_to_do else None
        settings = sweep.where.lease_seconds, sweep.since, len(held) or 1, sweep.arguments, sweep.samples, stop, meter
        outcome = run(
            sweep.plan,
            sweep.results,
            shown,
            sweep.where.kept,
            Sharing(*settings, tell=_ignore if sweep.quiet else tell),
        )
    shared = f" from {outcome.prefills} prefills of {outcome.tokens_prefilled} tokens" if outcome.prefills else ""
    halved = f"; memory ran out {outcome.halved} times, fewer cells were then held" if outcome.halved else ""
    if not sweep.quiet and (outcome.rows or sweep.launcher.name == "none"):
        tell(f"{outcome.rows} rows{shared}{halved}")
    return outcome.errors


@contextmanager
def stopping(names: Sequence[str]) -> Iterator[Callable[[], str | None]]:
    """While the block runs, these signals end nothing at once; the yielded function names the first that arrived.

    Earlier handlers are called after the block: submitit's requeues a job at its time limit. Outside of the main
    thread, where Python takes no signals, nothing happens.
    """
    arrived: list[str] = []

    def note(number: int, frame: FrameType | None) -> None:
        if not arrived:
            arrived.append(signal.Signals(number).name)
            os.write(2, f"kvbench: {arrived[0]}: stopping after this sample\n".encode())  # print may be busy

    before = {}
    try:
        for name in names:
            number = signal.Signals[name]
            try:
                before[number] = signal.signal(number, note)
            except ValueError:  # another thread than the main one
                break
        yield lambda: arrived[0] if arrived else None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for name in arrived:
            handler = before[signal.Signals[name]]
            if callable(handler):
                handler(signal.Signals[name], None)


def _ignore(warning: str) -> None:
    """Reading the rows for the plan has printed it."""


def _announce(sweep: Sweep) -> None:
    if sweep.quiet:
        return
    plan = sweep.plan
    cells = f"{len(plan.cells)} cell{'s' * (len(plan.cells) != 1)}"
    todo = f"{plan.rows_to_do} rows to make from {plan.prefills_to_do} prompts"
    if sweep.part is not None:
        tell(f"{cells}, shard {sweep.part.index + 1}/{sweep.part.of}: {todo}; results in {sweep.results.path}")
    elif not plan.rows_to_do:
        tell(f"{cells}, all {plan.rows} rows are in {sweep.results.path}")
    else:
        had = f" ({plan.rows - plan.rows_to_do} rows are there already)" if plan.rows_to_do < plan.rows else ""
        tell(f"{cells}, {todo}{had}; results in {sweep.results.path}")
