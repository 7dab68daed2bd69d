"""Progress of a long run: a live bar on a terminal and in a notebook with ipywidgets, elsewhere a line now and then."""

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
    counts = TextColumn("{task.description}", markup=False), BarColumn(bar_width=20), MofNCompleteColumn()
    rows = TextColumn("prompts, {task.fields[rows]}"), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn()
    bar = Bar(*counts, *rows, console=screen(), transient=True)
    live = bar.console.is_terminal or (bar.console.is_jupyter and find_spec("ipywidgets") is not None)
    shown = RunProgress(plan, bar, not live, gpus)
    with bar if live else nullcontext():
        yield shown
    if live:
        shown.ended()


class RunProgress:
    """Counts what is recorded, on a bar; with `lines`, prints a line per model, every ten seconds, and at the end.

    gpus: of this process; then the pace is the rows that it made itself, per GPU hour.
    """

    def __init__(self, plan: Plan, bar: Bar, lines: bool, gpus: float) -> None:
        self._plan, self._bar, self._lines, self._gpus = plan, bar, lines, gpus
        self._prompts = self._rows = self._errors = self._elsewhere = self._rows_elsewhere = 0
        self._start = self._last = time.monotonic()
        self._task = bar.add_task("starting", total=plan.prefills_to_do, rows="0 rows")

    def loading(self, model: str) -> None:
        self._bar.update(self._task, description=printable(model))
        if self._lines:
            self._bar.console.print(f"loading {printable(model)}", soft_wrap=True)
        if not self._prompts + self._elsewhere:
            self._start = time.monotonic()  # the time left counts from the first model

    def noted(self, text: str) -> None:
        self._bar.console.print(printable(text), soft_wrap=True)

    def recorded(self, rows: list[Row]) -> None:
        self._prompts += 1
        self._rows += len(rows)
        self._errors += sum(row.error is not None for row in rows)
        self._show()

    def elsewhere(self, rows: int, whole_job: bool = True) -> None:
        self._rows_elsewhere += rows
        if whole_job:
            self._elsewhere += 1
            self._show()

    def ended(self) -> None:
        if self._prompts + self._elsewhere:
            self._show(0)

    def _show(self, advance: int = 1) -> None:
        now, total, rows = time.monotonic(), self._plan.prefills_to_do, self._rows + self._rows_elsewhere
        prompts_done = min(self._prompts + self._elsewhere, total)  # what another process gave up is counted twice
        elsewhere, seconds = prompts_done - min(self._prompts, total), now - self._start
        counted, failed = min(rows, self._plan.rows_to_do), f" rows, {self._errors} failed" if self._errors else " rows"
        made, unit = (self._rows / self._gpus, "rows a GPU hour") if self._gpus else (counted, "rows an hour")
        pace = f", {3600 * made / seconds:,.0f} {unit}" if seconds else ""
        self._bar.update(self._task, advance=advance, rows=f"{rows}{failed}{pace}")
        is_due = self._lines and (now - self._last >= SECONDS_BETWEEN_LINES or prompts_done == total)
        if is_due or not advance:
            self._last, others = now, f" ({elsewhere} by other processes)" if elsewhere else ""
            counts = f"{prompts_done}/{total} prompts{others}, {counted}/{self._plan.rows_to_do}{failed}"
            remaining = seconds / prompts_done * (total - prompts_done)
            line = f"{counts}, {seconds:.0f} s, {remaining:.0f} s left{pace}"
            self._bar.console.print(line, soft_wrap=True)
