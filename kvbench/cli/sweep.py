"""A planned sweep in this process or through its launcher: what is missing is made, the table of its cells printed."""

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from types import FrameType

import pyarrow as pa

from kvbench.cli.errors import Exit, guarded, tracebacks_in
from kvbench.cli.next_command import next_command
from kvbench.cli.progress import progress
from kvbench.cli.terminal import tell, warn
from kvbench.config.sweep import Sweep, plan_sweep
from kvbench.records import ResultsFolder, Row
from kvbench.records.manifest import NAME, read_manifest, write_manifest
from kvbench.report.loggers import Logger, NoLogger
from kvbench.report.rows import fetched
from kvbench.report.tables.summary import NEEDED
from kvbench.run.claims import Sharing
from kvbench.run.launch import Task, Work
from kvbench.run.plan import Plan, Shard, shards_of
from kvbench.run.progress import Outcome, Progress
from kvbench.run.stale import Stale
from kvbench.servers.run import run_served
from kvbench.support.errors import MissingFile, UserError
from kvbench.support.quantity import plural
from kvbench.tasks.efficiency import Efficiency


@dataclass(frozen=True)
class PartOfSweep:
    """A part of the sweep that `arguments` ask for, made in the process that calls it; returns its exit code.

    logger: that of the command, which `arguments` do not name.
    """

    arguments: tuple[str, ...]
    retry: bool
    part: Shard
    stale: Stale = "stop"
    logger: Logger = field(default_factory=NoLogger)

    def __call__(self) -> int:
        return guarded(self._run)

    def _run(self) -> int:
        sweep = plan_sweep(self.arguments, tell, self.retry, self.part, stale=self.stale)
        return run_sweep(replace(sweep, logger=self.logger))


def run_sweep(sweep: Sweep, table: bool = True) -> int:
    """Run what is missing of a sweep and print its table. Exit code 4 when some of its samples have failed."""
    flags = {"--retry-errors": sweep.retry, f"--stale={sweep.stale}": sweep.stale != "stop"}
    command = ("kvbench", "run", *sweep.arguments, *(flag for flag, given in flags.items() if given))
    part = partial(PartOfSweep, sweep.arguments, sweep.retry, stale=sweep.stale, logger=sweep.logger)
    code, ended = make(sweep, command, part)
    if not ended:
        return code
    if sweep.part is not None:  # table and logger are of the whole sweep
        _mirror_whole(sweep)
        return code
    rows = recorded_rows(sweep)
    if table and not sweep.quiet:
        print_sweep(sweep, rows)
        if not sweep.since and (advice := next_command(sweep, rows)):  # the first run in its folder
            tell(advice)
    if not isinstance(sweep.logger, NoLogger):
        sweep.logger.mirror(sweep.results, fetched(rows))
    return Exit.OK if rows["error"].null_count == rows.num_rows else Exit.INCOMPLETE


def _mirror_whole(sweep: Sweep) -> None:
    """Mirror a sweep whose last part has ended; the other parts leave that to it."""
    if isinstance(sweep.logger, NoLogger):
        return
    rows = sweep.rows(())
    if left := sweep.plan.rows - rows.num_rows:
        if not sweep.quiet:
            missing = f"{plural(left, 'row')} of other parts are missing"
            tell(f"logger={sweep.logger.name}: {missing}; the last part mirrors all")
        return
    sweep.logger.mirror(sweep.results, fetched(rows))


def print_sweep(sweep: Sweep, rows: pa.Table) -> None:
    """Print the table of a sweep, whose rows these are."""
    if all(isinstance(cell.task, Efficiency) for cell in sweep.plan.cells):
        from kvbench.report.tables.efficiency import print_efficiency

        print_efficiency(sweep.results.path, "text", sys.stdout, _ignore, {"cell": list(sweep.samples)})
    else:
        from kvbench.report.tables.table import print_table_of

        print_table_of(rows, sweep.results, sys.stdout)


def make(sweep: Sweep, command: Sequence[str], task: Callable[[Shard], Task]) -> tuple[int, bool]:
    """Make what is missing of a sweep: here, or by its launcher, which runs `command` or, in parts, `task`.

    Returns the exit code, and whether that has ended: not if jobs were submitted, or if something stopped it.
    """
    _announce(sweep)
    if not sweep.plan.rows_to_do:
        return Exit.OK, True
    submits = sweep.launcher.name == "slurm"
    if submits:
        sweep.results.write_sweep(sweep.arguments, sweep.samples)  # jobs may start much later
    work = Work(command, sweep.results, lambda shards: [task(part) for part in shards_of(sweep.plan, shards)])
    code = sweep.launcher.launch(work)
    if code is None:  # the launcher leaves it to this process
        return Exit.INCOMPLETE if _run(sweep) else Exit.OK, True
    return code, code in (Exit.OK, Exit.INCOMPLETE) and not submits


def recorded_rows(sweep: Sweep) -> pa.Table:
    """The rows of a sweep that has ended, as columns: those that its table needs. Raises as `rows_of`."""
    rows = sweep.rows(NEEDED, keep=True)
    if lost := sweep.plan.rows - rows.num_rows:
        raise MissingFile(
            f"{sweep.results.path} has lost {plural(lost, 'row')} during the run: files were removed, moved "
            "or damaged; put them back, or run the same command again: it computes lost rows again"
        )
    return rows


def rows_of(sweep: Sweep) -> list[Row]:
    """The rows of a sweep that has ended. Raises MissingFile if some were lost during the run."""
    return fetched(recorded_rows(sweep))


def _run(sweep: Sweep) -> int:
    """Make what is missing in this process; returns how many rows have failed."""
    with (
        tracebacks_in(sweep.results),
        stopping(sweep.launcher.signals) as stop,
        progress(sweep.plan, sweep.quiet) as shown,
    ):
        sharing = Sharing(
            seconds=sweep.where.lease_seconds,
            since=sweep.since,
            command=sweep.arguments,
            cells=sweep.samples,
            stop=stop,
            tell=_ignore if sweep.quiet else tell,
        )
        served, here = (
            Plan(tuple(group for group in sweep.plan.groups if group.cells[0].is_served is is_served))
            for is_served in (True, False)
        )
        outcomes = [run_served(served, sweep.results, shown, sharing)] if served.groups else []
        outcomes += [_run_here(here, sweep, shown, sharing)] if here.groups else []
        outcome = Outcome.of_all(outcomes)
    _describe(sweep.results)
    shared = f" from {plural(outcome.prefills, 'prefill')} of {outcome.tokens_prefilled} tokens"
    halved = (
        f"; ran out of memory {outcome.halved} times and continued with fewer cells at a time" if outcome.halved else ""
    )
    if not sweep.quiet and (outcome.rows or sweep.launcher.name == "none"):
        tell(f"{plural(outcome.rows, 'row')}{shared * bool(outcome.prefills)}{halved}")
    return outcome.errors


def _run_here(plan: Plan, sweep: Sweep, shown: Progress, sharing: Sharing) -> Outcome:
    """Run the cells that evict here. torch is loaded for them alone."""
    import torch

    from kvbench.models.loading.load import choose_device
    from kvbench.run.runner import run
    from kvbench.run.timed import energy_meter

    held = {choose_device(group.model) for group in plan.groups}
    if any(group.model.device_map is not None for group in plan.groups):
        held |= {torch.device("cuda", index) for index in range(1, torch.cuda.device_count())}
    meter = energy_meter(held) if plan.rows_to_do else None
    sharing = replace(sharing, devices=len(held) or 1, joules=meter)
    return run(plan, sweep.results, shown, sweep.where.kept, sharing)


def _describe(results: ResultsFolder) -> None:
    """Write the manifest of a folder after a run; the rows are there without it. None of a folder that is gone."""
    try:
        if results.rows.is_dir():
            write_manifest(results, read_manifest(results))
    except (OSError, UserError) as error:
        warn(f"no {NAME} was written: {error}")


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
    cells = plural(len(plan.cells), "cell")
    todo = f"{plural(plan.rows_to_do, 'row')} to run from {plural(plan.prefills_to_do, 'prompt')}"
    if sweep.part is not None:
        tell(f"{cells}, shard {sweep.part.index + 1}/{sweep.part.of}: {todo}; results in {sweep.results.path}")
    elif not plan.rows_to_do:
        tell(f"{cells}, all {plan.rows} rows are in {sweep.results.path}")
    else:
        had = f" ({plan.rows - plan.rows_to_do} rows are there already)" if plan.rows_to_do < plan.rows else ""
        tell(f"{cells}, {todo}{had}; results in {sweep.results.path}")
