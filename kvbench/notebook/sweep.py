"""Sweeps from Python: `kvbench.run`, and the way from words to rows that it shares with `kvbench.Bench`."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NoReturn

from kvbench.notebook.prompts import Prompts, task_words
from kvbench.notebook.words import words_of
from kvbench.report.frames import frame_of
from kvbench.run.plan import Plan
from kvbench.run.progress import Progress
from kvbench.run.stale import RowsOfOtherCode, Stale
from kvbench.support.errors import UserError
from kvbench.work.planned import Sweep, plan_sweep
from kvbench.work.progress import progress, screen
from kvbench.work.sweep import RunOutput, logger_of, make, rows_of_sweep


def run(
    *words: str, data: Prompts | None = None, retry_errors: bool = False, stale: Stale = "stop", **settings: Any
) -> Any:
    """Make what is missing of a sweep in this process, and return all of its rows, one per cell and sample.

    words, settings: of the command line, `kvbench.run("task.samples=5", policy=["snapkv", "h2o"], budget=0.1)`;
    policies, scores and models (`Bench.model`) may be objects. data: prompts with answers, or the name of a task.
    retry_errors: failed samples are made again. stale: rows of other code stop the call ("stop"), are kept ("keep") or
    made again ("rerun").

    Raises UserError and MissingFile as the command does; a sample that failed is a row with an `error`.
    """
    return sweep_and_rows([*words, *words_of(settings)], data, retry_errors=retry_errors, stale=stale)[1]


def sweep_and_rows(
    arguments: Sequence[str],
    data: Prompts | None,
    methods: Sequence[Sequence[str]] = ((),),
    retry_errors: bool = False,
    stale: Stale = "stop",
) -> tuple[Sweep, Any]:
    """Return the sweep of words, with what was missing of it made, and its rows. methods: as in `plan_sweep`."""
    words = [*arguments, *([] if data is None else task_words(data, arguments))]
    with naming_stale():
        logger, sweep = logger_of(words), plan_sweep(words, _ignore, retry_errors, stale=stale, methods=methods)
    if sweep.launcher.name != "none":
        raise UserError(
            f"launcher={sweep.launcher.name}: Python runs in this process only; use the command kvbench run"
        )
    make(sweep, (), _no_part, SCREEN)
    rows = rows_of_sweep(sweep)
    logger.mirror(sweep.results, rows)
    return sweep, frame_of(rows, sweep.results.path)


@contextmanager
def naming_stale() -> Iterator[None]:
    """Name the argument `stale` in an error of the block about rows of other code."""
    try:
        yield
    except RowsOfOtherCode as error:
        raise RowsOfOtherCode(error.fault, 'stale="{}"') from None


def _progress(plan: Plan, gpus: float) -> AbstractContextManager[Progress | None]:
    """Return a bar where somebody looks: on a terminal and in a notebook."""
    console = screen()
    return progress(plan, gpus) if console.is_terminal or console.is_jupyter else nullcontext()


def _ignore(text: str) -> None:
    """Messages of commands: rows and errors say the same."""


SCREEN = RunOutput(_ignore, _progress)
"""The screen of Python: a bar, and no messages."""


def _no_part(part: object) -> NoReturn:
    raise AssertionError("a run in this process has no parts")
