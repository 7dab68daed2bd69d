"""What a long run prints on stderr while it runs: a live bar on a terminal, a plain line now and then elsewhere."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from kvbench.cli.terminal import screen
from kvbench.records import Row
from kvbench.run.plan import Plan
from kvbench.run.runner import Progress
from kvbench.support.text import printable

SECONDS_BETWEEN_LINES = 10.0


@contextmanager
def progress(plan: Plan, quiet: bool = False) -> Iterator[Progress]:
    """The progress of a run of `plan`, cleared up when the block ends; `quiet`: none."""
    if quiet:
        yield Silence()
        return
    console = screen(stderr=True)
    if not console.is_terminal:
        yield Lines(plan, console)
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("prompts, {task.fields[rows]} rows{task.fields[errors]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=console, transient=True) as bar:
        yield Live(plan, bar)


class Silence:
    """Prints nothing."""

    def loading(self, model: str) -> None:
        """A model is about to be loaded."""

    def recorded(self, rows: list[Row]) -> None:
        """A prefill job was recorded."""


class Live(Silence):
    """A bar that moves with every prompt."""

    def __init__(self, plan: Plan, bar: Bar) -> None:
        self._bar, self._rows, self._errors = bar, 0, 0
        self._task = bar.add_task("starting", total=plan.prefills_to_do, rows=0, errors="")

    def loading(self, model: str) -> None:
        """Name the model that reads the next prompts."""
        self._bar.update(self._task, description=printable(model))

    def recorded(self, rows: list[Row]) -> None:
        """Move on by one prompt."""
        self._rows += len(rows)
        self._errors += sum(row.error is not None for row in rows)
        self._bar.update(self._task, advance=1, rows=self._rows, errors=_failed(self._errors))


class Lines(Silence):
    """A line at the start, every ten seconds, and at the end."""

    def __init__(self, plan: Plan, console: Console) -> None:
        self._plan, self._console = plan, console
        self._start = self._last = time.monotonic()
        self._prompts = self._rows = self._errors = 0

    def loading(self, model: str) -> None:
        """Print which model is being loaded."""
        self._console.print(f"loading {printable(model)}", soft_wrap=True)
        if not self._prompts:
            self._start = time.monotonic()

    def recorded(self, rows: list[Row]) -> None:
        """Count a prompt, and print the counts when the last line is old."""
        self._prompts += 1
        self._rows += len(rows)
        self._errors += sum(row.error is not None for row in rows)
        now, total = time.monotonic(), self._plan.prefills_to_do
        if now - self._last < SECONDS_BETWEEN_LINES and self._prompts != total:
            return
        self._last, seconds = now, now - self._start
        left = seconds / self._prompts * (total - self._prompts)
        counts = f"{self._prompts}/{total} prompts, {self._rows}/{self._plan.rows_to_do} rows{_failed(self._errors)}"
        self._console.print(f"{counts}, {seconds:.0f} s, {left:.0f} s left", highlight=False, soft_wrap=True)


def _failed(errors: int) -> str:
    return f", {errors} failed" if errors else ""
