"""An item of a paper, planned and run: its printed numbers, and the sweep that makes ours."""

import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from kvbench.papers.cells import cells_of_item, is_smoke
from kvbench.papers.figures import draw_curves, draw_wins
from kvbench.papers.flops import ratios
from kvbench.papers.item import Item
from kvbench.papers.numbers import Placed
from kvbench.papers.page import Page, page
from kvbench.papers.plan_text import cells_text
from kvbench.papers.published import Published, published
from kvbench.papers.request import Request, RowsElsewhere, Runner
from kvbench.records import Row, check_writable
from kvbench.records.manifest import citation
from kvbench.report.formats.table import Report
from kvbench.report.plots.canvas import save, stamped, styled
from kvbench.report.plots.request import Request as PlotRequest
from kvbench.report.tables.observation_note import differing
from kvbench.report.tables.summary import Summary, summaries
from kvbench.run.estimate import estimate, measure, similar_runs, starting, submission
from kvbench.run.launch.slurm import Slurm, active
from kvbench.run.plan import Shard
from kvbench.run.plan_text import submission_text, total_text
from kvbench.support import paths
from kvbench.support.errors import MissingFile, UserError
from kvbench.support.named import code_of
from kvbench.support.quantity import count_noun
from kvbench.tasks.task import Task
from kvbench.work.failures import ExitCode
from kvbench.work.planned import Sweep, sweep_of
from kvbench.work.sweep import make, rows_of

DEVICE = "a100-80gb"
"""The device that the runs of items are planned for."""
OTHER_TIMES = "Times differ between machines, so no difference to the paper's is shown."


@dataclass(frozen=True)
class Result:
    """The page of an item, why it is incomplete ("" if it is not), and what draws its picture."""

    report: Report
    incomplete: str = ""
    draw: Callable[[Path], object] | None = None


def printed_page(item: Item, only_published: bool) -> Page:
    """Return the page of an item that runs nothing: its printed numbers, and those that its formulas give."""
    printed = published(item, paths.papers())
    if item.kind != "costs":
        return page(item, printed)
    remarks = ["Ours: from the formulas of the paper (eqs. 53 to 56), not measured."]
    return page(item, printed, computed={} if only_published else ratios(printed, item.keys), remarks=remarks)


class ItemSweep:
    """An item whose numbers are means of rows, or a table of times: one sweep of all cells of its runs."""

    def __init__(self, item: Item, request: Request, runner: Runner) -> None:
        self.item, self.request, self.runner = item, request, runner
        self.printed: list[Published] = published(item, paths.papers())
        self.cells = cells_of_item(item, request.overrides, request.smoke)

    def warn(self, warning: object) -> None:
        """Report a warning to the user."""
        self.runner.screen.tell(f"warning: {warning}")

    def plan_lines(self) -> Iterator[str]:
        """Yield what would run, what is missing, what is done and how long the rest takes.

        The last two need the model's files, because their hash is part of every cell's identity.
        """
        measured = f", {self.item.kind} {self.item.member}" if self.item.member else ""
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
        if isinstance(sweep.launcher, Slurm):
            submitted = submission(sweep.plan, similar, sweep.launcher, sweep.results, planning)
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
        """Yield the command lines that make the cells of the item."""
        launcher = [word for word in self.request.words if word.startswith("launcher")]
        command = ("kvbench", self.item.kind, self.item.member) if self.item.member else ("kvbench", "run")
        yield from (shlex.join([*command, *settings, *launcher]) for settings in self.cells.commands)

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
        return rows_of(sweep)

    def run(self) -> Result:
        """Return the page of the item; whatever it lacks is run first."""
        item, cells, smoke = self.item, self.cells, is_smoke(self.cells.with_data)
        if not cells.with_data:
            raise MissingFile("; ".join(cells.hints()))
        assert cells.results is not None
        check_writable(cells.results.dir)
        sweep = self.sweep()
        rows = self.make_rows(sweep)
        remarks = [f"{hint}." for hint in cells.hints()]
        remarks += [f"Rows: {text}." for text in [citation(sweep.results, self.warn)] if text]
        failed = sum(row.error is not None for row in rows)
        incomplete = [f"no data for {', '.join(cells.missing)}"] if cells.missing else []
        incomplete += [f"{failed} of {len(rows)} rows failed"] if failed else []
        ours = None
        if item.kind == "times":
            remarks += [protocol(cells.with_data, "repetitions"), OTHER_TIMES]
            shown = page(item, self.printed, remarks=remarks)
            if sweep.report == Task.report:
                raise UserError(f"paper item {item.name} takes tasks that measure times")
            ours = code_of("report", sweep.report)(sweep.results.path, self.warn, {"cell": [*sweep.samples]})
        else:
            by_cell = {summary.cell: summary for summary in summaries(rows, over=item.mean_over)}
            placed = [replace(entry, summary=by_cell.get(entry.cell.id)) for entry in cells.with_data]
            remarks += [_contexts([*by_cell.values()])] if item.mean_over == "contexts" else []
            shown = page(item, self.printed, placed, remarks=remarks, smoke=smoke)
            descriptions = {entry.cell.id: entry.cell.description for entry in placed}
            if text := differing(descriptions, descriptions.get):
                shown = replace(shown, head=(*shown.head, f"Ours: {text}."))
        draw = None if item.picture is None else partial(self._draw, shown, sweep, smoke)
        return Result(shown.report(ours), "; ".join(incomplete), draw)

    def _draw(self, shown: Page, sweep: Sweep, smoke: bool, picture: Path) -> None:
        """Draw the numbers of the page, or plot the rows."""
        kind = self.item.picture
        assert kind is not None
        with styled():
            if kind in ("curves", "wins"):
                save(draw_curves(shown) if kind == "curves" else draw_wins(shown), picture)
                return
            request = PlotRequest(sweep.results.path, {"cell": [*sweep.samples]}, self.item.plot, self.warn)
            figure = code_of("plot", kind)(request)
            save(stamped(figure, "SMOKE") if smoke else figure, picture)


def _contexts(cells: Sequence[Summary]) -> str:
    """Return how many contexts the means are over."""
    counts = sorted({cell.contexts for cell in cells if cell.contexts}) or [0]
    number = f"{counts[0]} to " * (counts[0] < counts[-1]) + count_noun(counts[-1], "context")
    return f"Ours are means over contexts ({number} a task), each with the mean of its questions; n counts questions."


def protocol(entries: Sequence[Placed], unit: str) -> str:
    """Return the measured model, the number of samples in this unit, and the settings that differ from the item's."""
    models = ", ".join(dict.fromkeys(entry.cell.model.label for entry in entries))
    changes = dict.fromkeys(text for entry in entries for text in entry.differs)
    differs = f". Differs from the paper's protocol: {'; '.join(changes)}" if changes else ""
    n = max(entry.cell.task.samples for entry in entries)
    return f"{'SMOKE: ' if is_smoke(entries) else ''}Ours: model {models}, n = {n} {unit}{differs}."
