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
def progress(plan: Plan, quiet: bool = False) -> Iterator[Progress]:
    """Yield the progress of a run of `plan`, cleared up when the block ends; `quiet`: none."""
    bar = Bar(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("prompts, {task.fields[rows]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=screen(),
        transient=True,
    )
    live = bar.console.is_terminal or (bar.console.is_jupyter and find_spec("ipywidgets") is not None)
    on_screen = live and not quiet
    with bar if on_screen else nullcontext():
        yield RunProgress(plan, bar, not on_screen and not quiet, quiet)


class RunProgress:
    """Counts what is recorded, on a bar; with `lines`, prints a line per model, every ten seconds, and at the end.
    Notes are printed in both cases, unless `quiet`.
    """

    def __init__(self, plan: Plan, bar: Bar, lines: bool, quiet: bool) -> None:
        self._plan, self._bar, self._lines, self._quiet = plan, bar, lines, quiet
        self._prompts = self._rows = self._errors = self._elsewhere = 0
        self._start = self._last = time.monotonic()
        self._task = bar.add_task("starting", total=plan.prefills_to_do, rows="0 rows")

    def loading(self, model: str) -> None:
        self._bar.update(self._task, description=printable(model))
        if self._lines:
            self._bar.console.print(f"loading {printable(model)}", soft_wrap=True)
        if not self._prompts + self._elsewhere:
            self._start = time.monotonic()  # the time left counts from the first model

    def noted(self, text: str) -> None:
        if not self._quiet:
            self._bar.console.print(printable(text), highlight=False, markup=False, soft_wrap=True)

    def recorded(self, rows: list[Row]) -> None:
        self._prompts += 1
        self._rows += len(rows)
        self._errors += sum(row.error is not None for row in rows)
        self._show()

    def elsewhere(self, rows: int) -> None:
        self._elsewhere += 1
        self._rows += rows
        self._show()

    def _show(self) -> None:
        failed = f" rows, {self._errors} failed" if self._errors else " rows"
        self._bar.update(self._task, advance=1, rows=f"{self._rows}{failed}")
        now, total = time.monotonic(), self._plan.prefills_to_do
        prompts_done = min(self._prompts + self._elsewhere, total)  # what another process gave up is counted twice
        elsewhere, rows = prompts_done - min(self._prompts, total), min(self._rows, self._plan.rows_to_do)
        if self._lines and (now - self._last >= SECONDS_BETWEEN_LINES or prompts_done == total):
            self._last, seconds = now, now - self._start
            others = f" ({elsewhere} by other processes)" if elsewhere else ""
            counts = f"{prompts_done}/{total} prompts{others}, {rows}/{self._plan.rows_to_do}{failed}"
            remaining = seconds / prompts_done * (total - prompts_done)
            pace = f"{3600 * rows / seconds:,.0f} rows an hour" if seconds else ""
            line = ", ".join(filter(None, (counts, f"{seconds:.0f} s", f"{remaining:.0f} s left", pace)))
            self._bar.console.print(line, highlight=False, soft_wrap=True)
