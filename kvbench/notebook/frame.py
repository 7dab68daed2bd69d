"""`kvbench run` from Python: the rows of a sweep as a pandas frame."""

from functools import partial
from typing import Any

from kvbench.cli.sweep import PartOfSweep, make, rows_of
from kvbench.config.sweep import plan_sweep
from kvbench.notebook.in_memory import words_of
from kvbench.records import COLUMNS
from kvbench.support.errors import UserError


def run(*words: str, **settings: Any) -> Any:
    """Make what is missing of a sweep in this process, and return all of its rows, one per cell and sample.

    words, settings: those of the command line, `kvbench.run("task.samples=5", policy=["snapkv", "h2o"], budget=0.1)`.
    Raises UserError and MissingFile as the command does; a sample that failed is a row with an `error`.
    """
    import pandas

    sweep = plan_sweep([*words, *words_of(settings)], lambda text: None, quiet=True)
    if sweep.launcher.name != "none":
        raise UserError(
            f"launcher={sweep.launcher.name}: kvbench.run works in this process only; use the command kvbench run"
        )
    make(sweep, (), partial(PartOfSweep, sweep.arguments, sweep.retry))
    return pandas.DataFrame([[getattr(row, name) for name in COLUMNS] for row in rows_of(sweep)], columns=list(COLUMNS))
