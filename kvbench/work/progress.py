"""Progress of a long run: a live bar on a terminal or in a notebook, a plain line now and then elsewhere.

rich draws in a notebook by itself, if ipywidgets is installed there.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from kvbench.records import Row
from kvbench.run.plan import Plan
from kvbench.run.progress import Progress
from kvbench.support.text import printable

SECONDS_BETWEEN_LINES = 10.0


def screen() -> Console:
    """Return the screen of progress, stderr or a notebook: texts are as they are, without markup."""
    return Console(stderr=True, highlight=False, markup=False, emoji=False)


@contextmanager
def progress(plan: Plan, gpus: float = 0) -> Iterator[Progress]:
    """Yield the progress of a run of `plan` on so many GPUs, cleared up when the block ends."""
    bar = Bar(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("prompts, {task.fields[rows]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=screen(),
        transient=True,
    )
    live = bar.console.is_terminal or (bar.console.is_jupyter and find_spec("ipywidgets") is not None)
    shown = RunProgress(plan, bar, not live, gpus)
    with bar if live else nullcontext():
        yield shown
    if live:
        shown.ended()


class RunProgress:
    """Counts what is recorded, on a bar; with `lines`, prints a line per model, every ten seconds, and at the end.
    Notes are printed in both cases.

    gpus: of this process; then the pace is the rows that it made itself, per GPU hour.
    """

    def __init__(self, plan: Plan, bar: Bar, lines: bool, gpus: float) -> None:
        self._plan, self._bar, self._lines, self._gpus = plan, bar, lines, gpus
        self._prompts = self._rows = self._own_rows = self._errors = self._elsewhere = 0
        self._start = self._last = time.monotonic()
        self._task = bar.add_task("starting", total=plan.prefills_to_do, rows="0 rows")

    def loading(self, model: str) -> None:
        self._bar.update(self._task, description=printable(model))
        if self._lines:
            self._bar.console.print(f"loading {printable(model)}", soft_wrap=True)
        if not self._prompts + self._elsewhere:
            self._start = time.monotonic()  # the time left counts from the first model

    def noted(self, text: str) -> None:
        self._bar.console.print(printable(text), highlight=False, markup=False, soft_wrap=True)

    def recorded(self, rows: list[Row]) -> None:
        self._prompts += 1
        self._rows += len(rows)
        self._own_rows += len(rows)
        self._errors += sum(row.error is not None for row in rows)
        self._show()

    def elsewhere(self, rows: int) -> None:
        self._elsewhere += 1
        self._rows += rows
        self._show()

    def ended(self) -> None:
        """Print how far the run has come, if anything was made."""
        if self._prompts + self._elsewhere:
            self._print(time.monotonic())

    @property
    def _failed(self) -> str:
        return f" rows, {self._errors} failed" if self._errors else " rows"

    @property
    def _done(self) -> int:
        """Prompts that are made: what another process gave up is counted twice."""
        return min(self._prompts + self._elsewhere, self._plan.prefills_to_do)

    def _pace(self, seconds: float) -> str:
        """Return the rows an hour of all processes, on GPUs those of this one for each; empty at the start."""
        if not seconds:
            return ""
        if self._gpus:
            return f"{3600 * self._own_rows / seconds / self._gpus:,.0f} rows a GPU hour"
        return f"{3600 * min(self._rows, self._plan.rows_to_do) / seconds:,.0f} rows an hour"

    def _show(self) -> None:
        now = time.monotonic()
        counts = ", ".join(filter(None, (f"{self._rows}{self._failed}", self._pace(now - self._start))))
        self._bar.update(self._task, advance=1, rows=counts)
        if self._lines and (now - self._last >= SECONDS_BETWEEN_LINES or self._done == self._plan.prefills_to_do):
            self._last = now
            self._print(now)

    def _print(self, now: float) -> None:
        done, total, seconds = self._done, self._plan.prefills_to_do, now - self._start
        elsewhere, rows = done - min(self._prompts, total), min(self._rows, self._plan.rows_to_do)
        others = f" ({elsewhere} by other processes)" if elsewhere else ""
        counts = f"{done}/{total} prompts{others}, {rows}/{self._plan.rows_to_do}{self._failed}"
        remaining = seconds / done * (total - done)
        parts = (counts, f"{seconds:.0f} s", f"{remaining:.0f} s left", self._pace(seconds))
        self._bar.console.print(", ".join(filter(None, parts)), highlight=False, soft_wrap=True)
