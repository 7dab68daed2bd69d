"""An item of a paper, planned and run: its printed numbers, and the sweep that makes ours.

The caller hands in the functions that make rows and report to the user, so that this file is independent of the CLI.
"""

import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

from kvbench.config.overrides import Override, parse
from kvbench.config.sweep import Sweep, Tell, around
from kvbench.papers.figures import draw_curves, draw_wins
from kvbench.papers.flops import ratios
from kvbench.papers.item import Item
from kvbench.papers.numbers import Published, published
from kvbench.papers.page import Page, page
from kvbench.papers.settings import Entry, cells_of_item, is_smoke
from kvbench.records import ResultsFolder, Row, check_writable, file_sizes
from kvbench.records.manifest import citation
from kvbench.records.rows import recorded
from kvbench.report.formats.table import Report
from kvbench.report.plots.canvas import save, stamped, styled
from kvbench.report.plots.request import Request as PlotRequest
from kvbench.report.tables.observation_note import differing
from kvbench.report.tables.summary import Summary, summaries
from kvbench.run.estimate import estimate, measure, similar_runs, starting, submission
from kvbench.run.launch.local import Launcher
from kvbench.run.launch.slurm import Slurm
from kvbench.run.plan import Cell, Plan, Shard, plan
from kvbench.run.plan_text import submission_text, total_text
from kvbench.run.stale import SETTLED, Settled, Stale, settled
from kvbench.support import paths
from kvbench.support.errors import MissingFile, UserError
from kvbench.support.grouped import grouped
from kvbench.support.named import code_of
from kvbench.support.quantity import count_noun
from kvbench.tasks.task import Task

OTHER_TIMES = "Times differ between machines, so no difference to the paper's is shown."


@dataclass(frozen=True)
class Runner:
    """The functions that run an item and report to the user.

    make_rows: runs what is missing of the sweep of an item, here or by its launcher, and returns all of its rows; may
    raise RowsElsewhere. tell: reports one line to the user.
    """

    make_rows: Callable[[Sweep, str], list[Row]]
    tell: Tell


class RowsElsewhere(Exception):
    """Why an item cannot be rendered yet: its launcher has submitted the work, or was stopped with this exit code."""

    def __init__(self, reason: str, code: int) -> None:
        super().__init__(reason)
        self.code = code


@dataclass(frozen=True)
class Request:
    """The arguments of `kvbench paper`: settings, a format, and how to run.

    small: a smoke run. only_plan: run nothing and print the plan; with `measure`, estimate its time from new rows.
    only_commands: run nothing and print the commands that make the same cells.
    only_published: only the paper's numbers. retry_errors: run samples again that failed. stale: what is done about
    rows of other code.
    """

    words: tuple[str, ...] = ()
    format: str = "text"
    small: bool = False
    only_plan: bool = False
    only_commands: bool = False
    measure: bool = False
    only_published: bool = False
    retry_errors: bool = False
    stale: Stale = "stop"

    @property
    def own_words(self) -> tuple[str, ...]:
        """The words without the launcher's."""
        return tuple(word for word in self.words if not word.startswith("launcher"))

    @cached_property
    def overrides(self) -> list[Override]:
        """The settings of the item."""
        return [override for override in parse(self.words) if override.root != "launcher"]

    @property
    def launcher(self) -> Launcher:
        """The launcher that runs the cells."""
        return around("launcher", [override for override in parse(self.words) if override.root == "launcher"])


@dataclass(frozen=True)
class Result:
    """The page of an item, why it is incomplete ("" if it is not), our tables below it, and its picture."""

    page: Page
    incomplete: str = ""
    ours: Report | None = None
    draw: Callable[[Path], object] | None = None


class PrintedNumbers:
    """The printed numbers of an item, and those that its formulas give; the base of items that run something.

    unused: settings of the command line that the item does not have.
    """

    runs = False

    def __init__(self, item: Item, request: Request, runner: Runner) -> None:
        self.item, self.request, self.runner = item, request, runner
        self.printed: list[Published] = published(item, paths.papers())
        self.unused = {override.key for override in request.overrides}

    def plan_lines(self) -> Iterator[str]:
        """Return the cells that would run, and how much of them is done."""
        yield from ()

    def commands(self) -> Iterator[str]:
        """Yield the command lines that make the cells of the item; none if it runs nothing."""
        yield from ()

    def run(self) -> Result:
        """Return the page of the item; whatever it lacks is run first."""
        if self.item.kind != "costs":
            return Result(page(self.item, self.printed))
        computed = {} if self.request.only_published else ratios(self.printed, self.item.keys)
        remarks = ["Ours: from the formulas of the paper (eqs. 53 to 56), not measured."]
        return Result(page(self.item, self.printed, computed=computed, remarks=remarks))

    def warn(self, warning: object) -> None:
        """Report a warning to the user."""
        self.runner.tell(f"warning: {warning}")


class ItemSweep(PrintedNumbers):
    """An item whose numbers are means of rows, or a table of times."""

    runs = True

    def __init__(self, item: Item, request: Request, runner: Runner) -> None:
        super().__init__(item, request, runner)
        self.cells = cells_of_item(item, request.overrides, request.small)
        self.unused = self.cells.unused

    def plan_lines(self) -> Iterator[str]:
        """Yield one line per group of cells that share what they read or how they read it, the sums, what is missing,
        what is done and how long the rest takes.

        The last two need the model's files, because their hash is part of every cell's identity.
        """
        measured = f", {self.item.kind} {self.item.member}" if self.item.member else ""
        yield f"{self.item.title}\nplanned for {self.item.device}{measured}\n"
        prompts = rows = 0
        for line, entries in grouped(self.cells.entries, lambda entry: _plan_line(entry.cell)).items():
            prompt_counts: dict[str, int] = {}
            for entry in entries:
                prompt = repr((entry.cell.task, entry.cell if entry.cell.schedule.prefill_block else None))
                prompt_counts[prompt] = max(prompt_counts.get(prompt, 0), _texts(entry.cell.task))
            answers = sum(entry.cell.task.num_answers for entry in entries)
            prompts, rows = prompts + sum(prompt_counts.values()), rows + answers
            yield f"{line}: {_counts(len(entries), sum(prompt_counts.values()), answers)}"
        yield from self.cells.hints()
        yield from (f"another task is used instead: {hint}" for hint in self.cells.replaced)
        yield f"\n{_counts(len(self.cells.entries), prompts, rows)}"
        if self.cells.with_data:
            try:
                yield from self._remaining()
            except FileNotFoundError as error:
                yield f"rows done and time left are unknown: {error}"

    def _remaining(self) -> Iterator[str]:
        planned, results, _ = self._planned()
        similar, settings, planning = similar_runs(planned, results), self.cells.results, time.process_time()
        assert settings is not None
        if self.request.measure and measure(planned, similar.rows, results, settings.kept, settings.lease_seconds):
            planned, results, _ = self._planned()
            similar = similar_runs(planned, results)
        yield f"{planned.rows - planned.rows_to_do} of {planned.rows} rows are in {results.path}"
        if planned.rows_to_do:
            yield total_text(estimate(planned, similar), starting(planned, similar, planning))
        if isinstance(launcher := self.request.launcher, Slurm):
            yield f"\n{submission_text(submission(planned, similar, launcher, results, planning))}"

    def _planned(self) -> tuple[Plan, ResultsFolder, Settled]:
        """Return one plan for all cells, the folder of its rows, and what is there. Raises MissingFile without a
        model.
        """
        assert self.cells.results is not None
        folder = self.cells.results.dir
        results, cells = ResultsFolder(folder), [entry.cell for entry in self.cells.with_data]
        rows = recorded(results, SETTLED, self.warn, {cell.id for cell in cells})
        there = settled(rows, cells, results, self.request.retry_errors, self.request.stale, self.warn)
        return plan(cells, there.done), results, there

    def run(self) -> Result:
        cells, smoke = self.cells, is_smoke(self.cells.with_data)
        if not cells.with_data:
            raise MissingFile("; ".join(cells.hints()))
        sweep = self.sweep()
        rows = self.runner.make_rows(sweep, self.item.name)
        remarks = [f"{hint}." for hint in cells.hints()]
        if cells.missing and self.item.layout.average is not None and smoke:
            remarks.append("Averages are over the tasks whose data is there.")
        remarks += [f"Another task is used instead, because data is missing: {hint}." for hint in cells.replaced]
        remarks += [f"Rows: {text}." for text in [citation(sweep.results, self.warn)] if text]
        failed = sum(row.error is not None for row in rows)
        incomplete = [f"no data for {', '.join(cells.missing)}"] if cells.missing else []
        incomplete += [f"{failed} of {len(rows)} rows failed"] if failed else []
        ours = None
        if self.item.kind == "times":
            result_page = page(
                self.item, self.printed, remarks=[*remarks, protocol(cells.with_data, "repetitions"), OTHER_TIMES]
            )
            selection = {"cell": [cell.id for cell in sweep.plan.cells]}
            if sweep.report == Task.report:
                raise UserError(f"paper item {self.item.name} takes tasks that measure times")
            ours = code_of("report", sweep.report)(sweep.results.path, self.warn, selection)
        else:
            by_cell = {summary.cell: summary for summary in summaries(rows, over=self.item.mean_over)}
            placed_cells = [entry.placed(by_cell) for entry in cells.with_data]
            if self.item.mean_over == "contexts":
                remarks.append(_contexts(list(by_cell.values())))
            result_page = page(self.item, self.printed, placed_cells, remarks=remarks, smoke=smoke)
            descriptions = {entry.cell.id: entry.cell.description for entry in cells.with_data}
            if text := differing(descriptions, descriptions.get):
                result_page = replace(result_page, head=(*result_page.head, f"Ours: {text}."))
        draw = partial(self._draw, result_page, sweep, smoke) if self.item.picture is not None else None
        return Result(result_page, "; ".join(incomplete), ours, draw)

    def commands(self) -> Iterator[str]:
        launcher_words = [word for word in self.request.words if word.startswith("launcher")]
        command = ("kvbench", self.item.kind, self.item.member) if self.item.member else ("kvbench", "run")
        yield from (shlex.join([*command, *settings, *launcher_words]) for settings in self.cells.commands)

    def sweep(self, part: Shard | None = None) -> Sweep:
        """Return one sweep of all cells, or a part of it. Raises UserError for a folder that cannot be written."""
        assert self.cells.results is not None
        check_writable(self.cells.results.dir)
        since = file_sizes(self.cells.results.dir)
        planned, folder, there = self._planned()
        return Sweep(
            plan=planned if part is None else part.part_of(planned),
            results=folder,
            since=since,
            where=self.cells.results,
            arguments=tuple(override.text for override in self.request.overrides),
            launcher=self.request.launcher,
            retry=self.request.retry_errors,
            part=part,
            stale=self.request.stale,
            replaced=there.replaced,
        )

    def _draw(self, shown: Page, sweep: Sweep, smoke: bool, picture: Path) -> None:
        """Draw the numbers of the page, or plot the rows."""
        kind = self.item.picture
        assert kind is not None
        with styled():
            if kind in ("curves", "wins"):
                save(draw_curves(shown) if kind == "curves" else draw_wins(shown), picture)
                return
            settings = {"y": self.item.layout.y} if self.item.kind == "times" else {}
            if kind == "needle" and any(number.unit == "rate" for number in self.printed):
                settings = {"unit": "rate"}
            cells = {"cell": [cell.id for cell in sweep.plan.cells]}
            figure = code_of("plot", kind)(PlotRequest(sweep.results.path, cells, settings, self.warn))
            save(stamped(figure, "SMOKE") if smoke else figure, picture)


def _texts(task: Task) -> int:
    """Return how many prompts a task has at most; the questions about a context share one."""
    return task.samples if task.contexts is None else min(task.samples, task.contexts)


def _counts(cells: int, prompts: int, rows: int) -> str:
    return f"{count_noun(cells, 'cell')}, at most {count_noun(prompts, 'prompt')}, {count_noun(rows, 'row')}"


def _plan_line(cell: Cell) -> str:
    """Name what the cells of a plan's line share: a prompt, or a method that reads prompts in blocks of its own."""
    if cell.schedule.prefill_block is None:
        length = "" if cell.task.context_length is None else f", {cell.task.context_length} tokens"
        return f"{cell.model.label}, {cell.task.name}{length}, {cell.schedule}"
    score = "" if cell.score_label is None else f" score {cell.score_label}"
    return f"{cell.model.label}, policy {cell.policy_label}{score} budget {cell.budget}, {cell.schedule}"


def _contexts(cells: Sequence[Summary]) -> str:
    """Return how many contexts the means are over."""
    counts = sorted({cell.contexts for cell in cells if cell.contexts}) or [0]
    number = f"{counts[0]} to " * (counts[0] < counts[-1]) + count_noun(counts[-1], "context")
    return f"Ours are means over contexts ({number} a task), each with the mean of its questions; n counts questions."


def protocol(entries: Sequence[Entry], unit: str) -> str:
    """Return the measured model, the number of samples in this unit, and the settings that differ from the item's."""
    models = ", ".join(dict.fromkeys(entry.cell.model.label for entry in entries))
    changes = dict.fromkeys(text for entry in entries for text in entry.differs)
    differs = f". Differs from the paper's protocol: {'; '.join(changes)}" if changes else ""
    n = max(entry.cell.task.samples for entry in entries)
    return f"{'SMOKE: ' if is_smoke(entries) else ''}Ours: model {models}, n = {n} {unit}{differs}."
