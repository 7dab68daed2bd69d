"""An item of a paper, planned and run: its printed numbers, and the sweep that makes ours."""

import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from matplotlib.figure import Figure

from kvbench.papers.cells import cells_of_item, is_smoke
from kvbench.papers.figures import draw_curves
from kvbench.papers.item import At, Item
from kvbench.papers.numbers import Measured, Placed, differences, numbers_of
from kvbench.papers.page import Page, page
from kvbench.papers.published import published
from kvbench.papers.request import PaperRequest, RowsElsewhere, Runner
from kvbench.records import Row, check_writable
from kvbench.records.manifest import true_manifest
from kvbench.report.formats.table import Report
from kvbench.report.plots.canvas import save, stamped, styled
from kvbench.report.plots.plot import Request
from kvbench.report.tables.observation_note import differing
from kvbench.report.tables.summary import Summary, summaries
from kvbench.run.estimate import estimate, measure, similar_runs, starting, submission
from kvbench.run.launch.slurm import active
from kvbench.run.shard import Shard
from kvbench.support import paths
from kvbench.support.errors import MissingFile
from kvbench.support.named import code_of
from kvbench.support.quantity import count_noun
from kvbench.work.failures import ExitCode
from kvbench.work.plan_text import cells_text, submission_text, total_text
from kvbench.work.planned import Sweep, sweep_of
from kvbench.work.sweep import make, rows_of_sweep

DEVICE = "a100-80gb"
"""The device that the runs of items are planned for."""


@dataclass(frozen=True)
class Result:
    """The page of an item, why it is incomplete ("" if it is not), and what draws its picture."""

    report: Report
    incomplete: str = ""
    draw: Callable[[Path], object] | None = None


class PrintedPage:
    """An item that runs nothing: its page has the printed numbers."""

    def __init__(self, item: Item, request: PaperRequest, runner: Runner) -> None:
        self.item, self.request, self.runner = item, request, runner
        self.printed = published(item, paths.papers())

    def commands(self) -> Iterator[str]:
        """Yield the command lines that make the cells of the item."""
        yield from ()

    def run(self) -> Result:
        """Return the page of the item; whatever it lacks is run first."""
        return Result(page(self.item, self.printed).report())


class ItemSweep(PrintedPage):
    """An item whose numbers are means of rows: one sweep of all cells of its runs."""

    measured_by = ("run",)
    """Words of the command that makes its cells."""

    def __init__(self, item: Item, request: PaperRequest, runner: Runner) -> None:
        super().__init__(item, request, runner)
        self.cells = cells_of_item(item, request.overrides, request.smoke)

    def warn(self, warning: object) -> None:
        """Report a warning to the user."""
        self.runner.screen.tell(f"warning: {warning}")

    def plan_lines(self) -> Iterator[str]:
        """Yield what would run, what is missing, what is done and how long the rest takes.

        The last two need the model's files, because their hash is part of every cell's identity.
        """
        measured = "" if self.measured_by == ("run",) else f", {' '.join(self.measured_by)}"
        yield f"{self.item.title}\nplanned for {DEVICE}{measured}\n"
        *lines, sums = cells_text([entry.cell for entry in self.cells.entries])
        yield from (*lines, *self.cells.hints(), f"\n{sums}")
        if self.cells.with_data:
            try:
                yield from self._remaining()
            except FileNotFoundError as error:
                yield f"rows done and time left are unknown: {error}"

    def _remaining(self) -> Iterator[str]:
        sweep, planning = self.sweep(), time.process_time()
        similar, where = similar_runs(sweep.plan, sweep.results), sweep.where
        if self.request.measure and measure(sweep.plan, similar.rows, sweep.results, where.kept, where.lease_seconds):
            sweep = self.sweep()
            similar = similar_runs(sweep.plan, sweep.results)
        yield f"{sweep.plan.rows - sweep.plan.rows_to_do} of {sweep.plan.rows} rows are in {sweep.results.path}"
        if sweep.plan.rows_to_do:
            yield total_text(estimate(sweep.plan, similar), starting(sweep.plan, similar, planning))
        if submitted := submission(sweep.plan, similar, sweep.launcher, sweep.results, planning):
            yield f"\n{submission_text(submitted)}"

    def sweep(self, part: Shard | None = None) -> Sweep:
        """Return one sweep of all cells, or a part of it. Raises MissingFile without a model."""
        assert self.cells.results is not None
        return sweep_of(
            [entry.cell for entry in self.cells.with_data],
            self.cells.results,
            self.request.launcher,
            self.runner.screen.tell,
            [override.text for override in self.request.overrides],
            self.request.retry_errors,
            part,
            stale=self.request.stale,
        )

    def commands(self) -> Iterator[str]:
        launcher = [word for word in self.request.words if word.startswith("launcher")]
        for settings in self.cells.commands:
            yield shlex.join(["kvbench", *self.measured_by, *settings, *launcher])

    def make_rows(self, sweep: Sweep) -> list[Row]:
        """Return all rows; the launcher makes what is missing. Raises RowsElsewhere if that has not ended."""
        name, command = self.item.name, self.request.command(self.item.name)
        if sweep.launcher.submits and sweep.plan.rows_to_do and (jobs := active(sweep.results, command)):
            reason = f"job {', '.join(jobs)} runs its rows; run this command again when the job has ended"
            raise RowsElsewhere(f"{name}: {reason}", ExitCode.OK)
        own = replace(self.request, words=self.request.own_words)
        code, ended = make(sweep, command, partial(self.runner.part, name, own), self.runner.screen)
        if not ended:
            again = "run the same command again when kvbench status shows that all rows are there"
            raise RowsElsewhere(f"{name}: {again}", code)
        return rows_of_sweep(sweep)

    def run(self) -> Result:
        if not self.cells.with_data:
            raise MissingFile("; ".join(self.cells.hints()))
        sweep = self.sweep()
        check_writable(str(sweep.results.path))
        rows = self.make_rows(sweep)
        remarks = [f"{hint}." for hint in self.cells.hints()]
        manifest = true_manifest(sweep.results, self.warn)
        remarks += [f"Rows: {sweep.results.path}: {manifest}."] if manifest else []
        failed = sum(row.error is not None for row in rows)
        incomplete = [f"no data for {', '.join(self.cells.missing)}"] if self.cells.missing else []
        incomplete += [f"{failed} of {len(rows)} rows failed"] if failed else []
        shown, ours = self.page(sweep, rows, remarks)
        draw = None if self.item.picture is None else partial(self._draw, shown, sweep)
        return Result(shown.report(ours), "; ".join(incomplete), draw)

    def page(self, sweep: Sweep, rows: Sequence[Row], remarks: Sequence[str]) -> tuple[Page, Report | None]:
        """Return the page of these rows, and the report that shows our numbers, if the page does not."""
        item, smoke = self.item, is_smoke(self.cells.with_data)
        by_cell = {summary.cell: summary for summary in summaries(rows, over=item.mean_over)}
        placed = [replace(entry, summary=by_cell.get(entry.cell.id)) for entry in self.cells.with_data]
        if item.mean_over == "contexts":
            remarks = [*remarks, _contexts([*by_cell.values()])]
        shown = page(item, self.printed, placed, self.numbers(placed, smoke), remarks, smoke)
        descriptions = {entry.cell.id: entry.cell.description for entry in placed}
        if text := differing(descriptions, descriptions.get):
            shown = replace(shown, head=(*shown.head, f"Ours: {text}."))
        return shown, None

    def numbers(self, cells: Sequence[Placed], smoke: bool) -> dict[At, Measured]:
        """Return our number at each place of the layout."""
        return numbers_of(self.item, cells, smoke)

    def _draw(self, shown: Page, sweep: Sweep, picture: Path) -> None:
        with styled():
            save(self.figure(shown, sweep), picture)

    def figure(self, shown: Page, sweep: Sweep) -> Figure:
        """Draw the numbers of the page, or plot the rows."""
        assert self.item.picture is not None
        if self.item.picture == "curves":
            return draw_curves(shown)
        request = Request(sweep.results.path, {"cell": [*sweep.samples]}, self.item.plot, self.warn)
        figure = code_of("plot", self.item.picture)(request)
        return stamped(figure, "SMOKE") if shown.smoke else figure


def _contexts(cells: Sequence[Summary]) -> str:
    """Return how many contexts the means are over."""
    counts = sorted({cell.contexts for cell in cells if cell.contexts}) or [0]
    number = f"{counts[0]} to " * (counts[0] < counts[-1]) + count_noun(counts[-1], "context")
    return f"Ours are means over contexts ({number} a task), each with the mean of its questions; n counts questions."


def protocol(entries: Sequence[Placed], unit: str) -> str:
    """Return the measured model, the number of samples in this unit, and the settings that differ from the item's."""
    models = ", ".join(dict.fromkeys(entry.cell.model.label for entry in entries))
    changes = differences(entries)
    differs = f". Differs from the paper's protocol: {'; '.join(changes)}" if changes else ""
    n = max(entry.cell.task.samples for entry in entries)
    return f"{'SMOKE: ' if is_smoke(entries) else ''}Ours: model {models}, n = {n} {unit}{differs}."
