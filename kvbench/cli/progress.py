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
    console = screen(stderr=True)
    if quiet:
        yield Silence()
    elif not console.is_terminal:
        yield Lines(plan, console)
    else:
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("prompts, {task.fields[rows]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        with Bar(*columns, console=console, transient=True) as bar:
            yield Live(plan, bar)


class Silence:
    """Prints nothing; counts what was recorded."""

    prompts = rows = errors = 0

    def loading(self, model: str) -> None:
        """A model is about to be loaded."""

    def recorded(self, rows: list[Row]) -> None:
        """The rows of a prefill job were recorded."""
        self.prompts += 1
        self.rows += len(rows)
        self.errors += sum(row.error is not None for row in rows)

    def counts(self, total: str = "") -> str:
        """Rows, of how many if that is given, and how many of them failed."""
        return f"{self.rows}{total} rows" + (f", {self.errors} failed" if self.errors else "")


class Live(Silence):
    """A bar that moves with every prompt."""

    def __init__(self, plan: Plan, bar: Bar) -> None:
        self._bar = bar
        self._task = bar.add_task("starting", total=plan.prefills_to_do, rows=self.counts())

    def loading(self, model: str) -> None:
        """Name the model that reads the next prompts."""
        self._bar.update(self._task, description=printable(model))

    def recorded(self, rows: list[Row]) -> None:
        """Move on by one prompt."""
        super().recorded(rows)
        self._bar.update(self._task, advance=1, rows=self.counts())


class Lines(Silence):
    """A line for each model, every ten seconds, and at the end."""

    def __init__(self, plan: Plan, console: Console) -> None:
        self._plan, self._console = plan, console
        self._start = self._last = time.monotonic()

    def loading(self, model: str) -> None:
        """Print which model is being loaded; time left counts from the first."""
        self._console.print(f"loading {printable(model)}", soft_wrap=True)
        if not self.prompts:
            self._start = time.monotonic()

    def recorded(self, rows: list[Row]) -> None:
        """Print the counts if the last line is old."""
        super().recorded(rows)
        now, total = time.monotonic(), self._plan.prefills_to_do
        if now - self._last >= SECONDS_BETWEEN_LINES or self.prompts == total:
            self._last, seconds = now, now - self._start
            left = seconds / self.prompts * (total - self.prompts)
            counts = f"{self.prompts}/{total} prompts, {self.counts(f'/{self._plan.rows_to_do}')}"
            self._console.print(f"{counts}, {seconds:.0f} s, {left:.0f} s left", highlight=False, soft_wrap=True)
