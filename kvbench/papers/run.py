"""An item of a paper, rendered: its page with its table, its figure, or its plan."""

import sys
import time
from pathlib import Path
from typing import NoReturn, TextIO

from kvbench.config.overrides import GROUPS
from kvbench.config.sweep import Sweep, Tell
from kvbench.papers import FORMATS
from kvbench.papers.item import Item, item_of, names
from kvbench.papers.work import ItemSweep, PrintedNumbers, Request, RowsElsewhere, Runner
from kvbench.report.formats.emit import write_report
from kvbench.report.output import file_to, text_to
from kvbench.report.plots.canvas import check_file
from kvbench.report.selection import NothingSelected
from kvbench.run.plan import Shard
from kvbench.support.errors import UserError
from kvbench.support.named import code_of, named
from kvbench.support.text import closest

ROOTS = (*GROUPS, "budget", "data", "results", "schedule", "seed")
"""The first part of a setting of an item that rows measure."""


def render_item(name: str, request: Request, runner: Runner, out: TextIO | Path, picture: Path | None) -> bool:
    """Render one item; returns whether it is complete. Raises UserError for an unknown name or setting.

    Raises MissingFile if no task of it has data, or its model is not there.
    """
    item = item_of(name)
    if picture is not None:
        check_file(picture)
        if item.picture is None and item.member is None:
            raise UserError(f"{name} is a table: leave --plot out; kvbench paper list shows the figures")
    roots = (*ROOTS, *named("item"))
    for override in request.overrides:
        if override.root not in roots:
            raise UserError(f"unknown setting {override.key}: {closest(override.root, roots)}")
    work = _work_of(item, request, runner)
    if work.runs:
        _check_used(work.unused, request, name)
    return not _render(work, request, out, picture)


def sweep_of(name: str, request: Request, tell: Tell, part: Shard) -> Sweep:
    """Return a part of the rows of an item, for a job that makes them."""

    def nothing(*_: object) -> NoReturn:
        raise AssertionError("--shard runs a part and renders nothing")

    return ItemSweep(item_of(name), request, Runner(nothing, tell)).sweep(part)


def render_all(request: Request, runner: Runner, folder: Path | None) -> bool:
    """Render all items, also if some of them fail. Returns whether all of them are complete.

    Raises UserError for a setting that no item has, and for a `folder` that is a file.
    """
    if folder is not None and folder.exists() and not folder.is_dir():
        raise UserError(f"--out {folder} is a file: paper all writes one page per item into a folder")
    unused = {override.key for override in request.overrides}
    incomplete: dict[str, str] = {}
    seconds: dict[str, float] = {}
    for name in names():
        item, start = item_of(name), time.perf_counter()
        out: TextIO | Path = sys.stdout
        picture = None
        if folder is not None:
            out = folder / f"{name}{FORMATS[request.format]}"
            out.parent.mkdir(parents=True, exist_ok=True)
            picture = out.with_suffix(".png") if item.picture is not None or item.member is not None else None
        runner.tell(name)
        try:
            work = _work_of(item, request, runner)
            reason = _render(work, request, out, picture)
            unused &= work.unused
            if folder is None:
                print("\n" + "=" * 120 + "\n")
        except (FileNotFoundError, ValueError, NothingSelected, RowsElsewhere) as error:
            reason = " ".join(str(error).split())
            runner.tell(f"{name} left out: {reason}")
        seconds[name] = time.perf_counter() - start
        if reason:
            incomplete[name] = reason
    if folder is not None:
        lines = [f"{name},{duration:.1f},{name not in incomplete}\n" for name, duration in seconds.items()]
        file_to(folder / "seconds.csv", lambda path: path.write_text("item,seconds,whole\n" + "".join(lines)))
    if not incomplete:
        _check_used(unused, request, "any item")
    runner.tell(f"{len(seconds) - len(incomplete)} of {len(seconds)} items are complete")
    for name, reason in incomplete.items():
        runner.tell(f"{name}: {reason}")
    return not incomplete


def _check_used(unused: set[str], request: Request, name: str) -> None:
    """Raise UserError for settings of the command line that no run has."""
    for override in request.overrides:
        if override.key in unused:
            raise UserError(f"unknown setting {override.key}: no run of {name} has it; kvbench paper {name} --plan")


def _work_of(item: Item, request: Request, runner: Runner) -> PrintedNumbers:
    if request.only_published or not item.all_runs:
        return PrintedNumbers(item, request, runner)
    if item.member is None:
        return ItemSweep(item, request, runner)
    return code_of("item", item.kind)(item, request, runner)


def _render(work: PrintedNumbers, request: Request, out: TextIO | Path, picture: Path | None) -> str:
    """Write the page and picture of an item, or its plan. Returns why it is incomplete ("" if it is not)."""
    if request.only_commands or (request.only_plan and work.runs):
        with text_to(out) as stream:
            stream.writelines(f"{line}\n" for line in (work.commands() if request.only_commands else work.plan_lines()))
        return ""
    result = work.run()
    write_report(result.page.report(result.ours), request.format, out)
    if picture is not None and result.draw is not None:
        result.draw(picture)
    return result.incomplete
