"""A planned sweep, in this process or through its launcher: what is missing is made, and all of its rows are read."""

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any, NoReturn

import pyarrow as pa

from kvbench.config.overrides import parse
from kvbench.records import ResultsFolder, Row, StopRequested
from kvbench.records.manifest import NAME, Manifest, lacks_files, read_manifest, write_manifest
from kvbench.records.rows import fetched, recorded
from kvbench.run.job_queue import JobQueue, RunContext
from kvbench.run.launch.launcher import PartToRun, PendingSweep
from kvbench.run.launch.local import handling
from kvbench.run.plan import Plan
from kvbench.run.procedure import backend_of
from kvbench.run.progress import Progress
from kvbench.run.runner import Opened, run
from kvbench.run.shard import Shard, shards_of
from kvbench.support.errors import MissingFile, UserError
from kvbench.support.quantity import count_noun
from kvbench.support.shared_gpus import processes_of_gpu
from kvbench.work.failures import ExitCode, tracebacks_in
from kvbench.work.logger import Logger
from kvbench.work.planned import Sweep, Tell, around


@dataclass(frozen=True)
class RunOutput:
    """Screen of a user: messages of one line, and the progress of a plan while it runs on a number of GPUs."""

    tell: Tell
    progress: Callable[[Plan, float], AbstractContextManager[Progress | None]]


SILENT = RunOutput(lambda text: None, lambda plan, gpus: nullcontext())


def logger_of(words: Sequence[str]) -> Logger:
    """Return where the settings of a command mirror its rows. Raises UserError if it cannot work here."""
    logger: Logger = around("logger", parse(words))
    logger.check()
    return logger


def make(
    sweep: Sweep,
    command: Sequence[str],
    task: Callable[[Shard], PartToRun],
    screen: RunOutput = SILENT,
    opened: Opened | None = None,
) -> tuple[int, bool]:
    """Make what is missing of a sweep: here, or by its launcher, which runs `command` or, in parts, `task`.

    opened: as in `kvbench.run.runner.run`.
    Returns the exit code, and whether that has ended: not if jobs were submitted, or if something stopped it.
    """
    screen = SILENT if sweep.quiet else screen
    _announce(sweep, screen.tell)
    if not sweep.plan.rows_to_do:
        _describe(sweep.results, screen.tell, lacks_files)  # the run that made the last row may have failed after it
        return ExitCode.OK, True
    submits = sweep.launcher.submits
    work = PendingSweep(command, sweep.results, lambda shards: [task(part) for part in shards_of(sweep.plan, shards)])
    with _requesting_answers(sweep):
        if submits:
            sweep.results.write_sweep(sweep.arguments, sweep.samples)  # jobs may start much later
        code = sweep.launcher.launch(work)
        if code is None:  # the launcher leaves it to this process
            return ExitCode.INCOMPLETE if _run(sweep, screen, opened) else ExitCode.OK, True
    return code, code in (ExitCode.OK, ExitCode.INCOMPLETE) and not submits


@contextmanager
def _requesting_answers(sweep: Sweep) -> Iterator[None]:
    """If the block raises a refusal, withdraw the cells of the models that have no row yet.

    Reports would miss their rows for ever. In a part of a sweep only the models of that part count.
    """
    try:
        yield
    except (UserError, MissingFile):
        with suppress(OSError, UserError):  # the refusal is told
            models = sweep.plan.by_model()
            cells = {cell.id: cell.model for cell in sweep.plan.cells if cell.model in models}
            rows = recorded(sweep.results, (), lambda text: None, set(cells))
            answered = {cells[cell] for cell in rows["cell"].unique().to_pylist()}
            unanswered = {cell for cell, model in cells.items() if model not in answered}
            sweep.results.withdraw_cells(sweep.arguments, unanswered)
        raise


def _requested(sweep: Sweep) -> dict[str, int]:
    """Return the request of a process: of a part of a sweep, the cells of its models alone."""
    models = sweep.plan.by_model() if sweep.part is not None else {cell.model for cell in sweep.plan.cells}
    requested = {cell.id for cell in sweep.plan.cells if cell.model in models}
    return {cell: samples for cell, samples in sweep.samples.items() if cell in requested}


def recorded_rows(sweep: Sweep, columns: Sequence[str] = ()) -> pa.Table:
    """Return these columns of the rows of a sweep that has ended. Raises as `rows_of_sweep`."""
    rows = sweep.rows(columns, keep=True)
    if lost_rows := sweep.plan.rows - rows.num_rows:
        raise MissingFile(
            f"{sweep.results.path} has lost {count_noun(lost_rows, 'row')} during the run: files were removed, moved "
            "or damaged; put them back, or run the same command again: it computes lost rows again"
        )
    return rows


def rows_of_sweep(sweep: Sweep) -> list[Row]:
    """Return the rows of a sweep that has ended. Raises MissingFile if some were lost during the run."""
    return fetched(recorded_rows(sweep))


def _run(sweep: Sweep, screen: RunOutput, opened: Opened | None) -> int:
    """Make what is missing in this process; returns how many rows have failed."""
    models = {cell.model for cell in sweep.plan.cells}
    devices = set[Any]().union(*(backend_of(model).devices(model) for model in models))
    gpus = sum(device.type == "cuda" for device in devices) / processes_of_gpu()
    with (
        tracebacks_in(sweep.results),
        stopping(sweep.launcher.signals) as stop,
        screen.progress(sweep.plan, gpus) as progress,
    ):
        run_context = RunContext(
            lease_seconds=sweep.where.lease_seconds,
            since=sweep.since,
            replaced=sweep.replaced,
            command=sweep.arguments,
            cells=_requested(sweep),
            stop=stop,
            tell=screen.tell,
        )
        jobs = JobQueue(sweep.results, _with_devices(run_context, devices, sweep.plan.rows_to_do))
        outcome = run(sweep.plan, sweep.results, jobs, progress, sweep.where.kept, opened)
    _describe(sweep.results, screen.tell)
    shared = f" from {count_noun(outcome.prefills, 'prefill')} of {outcome.tokens_prefilled} tokens"
    splits = f"; ran out of memory {outcome.oom_splits} times and continued with fewer cells at a time"
    if outcome.rows or sweep.launcher.name == "none":
        rows = count_noun(outcome.rows, "row")
        screen.tell(f"{rows}{shared * bool(outcome.prefills)}{splits * bool(outcome.oom_splits)}")
    return outcome.errors


def _with_devices(run_context: RunContext, devices: set[Any], rows_to_do: int) -> RunContext:
    """Return the context of a run that takes the devices of its models, and reads their energy."""
    if not devices:
        return run_context
    from kvbench.run.energy import energy_meter

    meter, sharing = energy_meter(devices) if rows_to_do else None, processes_of_gpu()
    joules = meter and (lambda: meter() / sharing)
    return replace(run_context, devices=len(devices) / sharing if sharing > 1 else len(devices), joules=joules)


def _describe(
    results: ResultsFolder, tell: Tell, is_due: Callable[[Manifest | None, ResultsFolder], bool] = lambda *_: True
) -> None:
    """Write the manifest of a folder, if that is due; the rows are there without it. None of a folder that is gone."""
    try:
        before = read_manifest(results)
        if results.rows.is_dir() and is_due(before, results):
            write_manifest(results, before)
    except (OSError, UserError) as error:
        tell(f"warning: no {NAME} was written: {error}")


@contextmanager
def stopping(names: Sequence[str]) -> Iterator[Callable[[], str | None]]:
    """While the block runs, these signals end nothing at once; the yielded function names the first that arrived.

    Earlier handlers are called after the block: submitit's requeues a job at its time limit. An error of the block is
    told rather than the stop.
    """
    arrived: list[str] = []

    def note_signal(number: int, frame: FrameType | None) -> None:
        if not arrived:
            arrived.append(signal.Signals(number).name)
            with suppress(OSError):  # who read stderr may be gone, and an error here would be the sample's
                os.write(2, f"kvbench: {arrived[0]}: stopping after this sample\n".encode())  # print may be busy

    with handling(names, note_signal) as earlier_handlers:
        try:
            yield lambda: arrived[0] if arrived else None
        finally:
            for name in arrived:
                handler = earlier_handlers[signal.Signals[name]]
                if callable(handler) and not (handler is stop_at_once and sys.exc_info()[0]):
                    handler(signal.Signals[name], None)


def stop_at_once(number: int, frame: FrameType | None) -> NoReturn:
    """Handle a signal before or after samples are made. Raises StopRequested."""
    raise StopRequested(signal.Signals(number).name)


def _announce(sweep: Sweep, tell: Tell) -> None:
    plan = sweep.plan
    cells = count_noun(len(plan.cells), "cell")
    todo = f"{count_noun(plan.rows_to_do, 'row')} to run from {count_noun(plan.prefills_to_do, 'prompt')}"
    if sweep.part is not None:
        tell(f"{cells}, shard {sweep.part.index + 1}/{sweep.part.of}: {todo}; results in {sweep.results.path}")
    elif not plan.rows_to_do:
        tell(f"{cells}, all {plan.rows} rows are in {sweep.results.path}")
    else:
        recorded = f" ({plan.rows - plan.rows_to_do} rows are there already)" if plan.rows_to_do < plan.rows else ""
        tell(f"{cells}, {todo}{recorded}; results in {sweep.results.path}")
