"""Items of papers, rendered: one or all of them, each as its page with its table and figure, or as its plan."""

import sys
import time
from pathlib import Path
from pkgutil import resolve_name
from typing import TextIO

from kvbench.config.overrides import GROUPS
from kvbench.papers.item import Item, item_of, names
from kvbench.papers.request import PaperRequest, RowsElsewhere, Runner
from kvbench.papers.sweep import ItemSweep, PrintedPage
from kvbench.report.formats.emit import write_report
from kvbench.report.plots.canvas import check_file
from kvbench.report.report_file import SUFFIXES, file_to, text_to
from kvbench.report.selection import NothingSelected
from kvbench.support.errors import UserError
from kvbench.support.text import closest

ROOTS = (*GROUPS, "budget", "data", "results", "schedule", "seed")
"""The first part of a setting of an item that rows measure."""


def render_item(name: str, request: PaperRequest, runner: Runner, out: TextIO | Path, picture: Path | None) -> bool:
    """Render one item; returns whether it is complete. Raises UserError for an unknown name or setting.

    Raises MissingFile if no task of it has data, or its model is not there.
    """
    item = item_of(name)
    roots = (*ROOTS, *filter(None, [item.own_settings]))
    if picture is not None and check_file(picture) and item.picture is None:
        raise UserError(f"{name} is a table: leave --plot out; kvbench paper list shows the figures")
    for override in request.overrides:
        if override.root not in roots:
            raise UserError(f"unknown setting {override.key}: {closest(override.root, roots)}")
    work = _work_of(item, request, runner)
    if isinstance(work, ItemSweep):
        _check_used(work.cells.unused, request, name)
    return not _render(item, work, request, out, picture)


def render_all(request: PaperRequest, runner: Runner, folder: Path | None) -> bool:
    """Render all items, also if some of them fail. Returns whether all of them are complete.

    Raises UserError for a setting that no item has, and for a `folder` that is a file.
    """
    if folder is not None and folder.exists() and not folder.is_dir():
        raise UserError(f"--out {folder} is a file: paper all writes one page per item into a folder")
    tell, unused = runner.screen.tell, {override.key for override in request.overrides}
    suffix = next(suffix for suffix, form in SUFFIXES.items() if form == request.format)
    reasons: dict[str, str] = {}
    seconds: dict[str, float] = {}
    for name in names():
        item, start = item_of(name), time.perf_counter()
        out = sys.stdout if folder is None else folder / f"{name}{suffix}"
        picture = out.with_suffix(".png") if isinstance(out, Path) and item.picture else None
        if isinstance(out, Path):
            out.parent.mkdir(parents=True, exist_ok=True)
        tell(name)
        try:
            work = _work_of(item, request, runner)
            reasons[name] = _render(item, work, request, out, picture)
            unused &= work.cells.unused if isinstance(work, ItemSweep) else unused
            if folder is None:
                print("\n" + "=" * 120 + "\n")
        except (FileNotFoundError, ValueError, NothingSelected, RowsElsewhere) as error:
            reasons[name] = " ".join(str(error).split())
            tell(f"{name} left out: {reasons[name]}")
        seconds[name] = time.perf_counter() - start
    if folder is not None:
        lines = [f"{name},{duration:.1f},{not reasons[name]}\n" for name, duration in seconds.items()]
        with file_to(folder / "seconds.csv") as path:
            path.write_text("item,seconds,whole\n" + "".join(lines))
    incomplete = {name: reason for name, reason in reasons.items() if reason}
    if not incomplete:
        _check_used(unused, request, "any item")
    tell(f"{len(seconds) - len(incomplete)} of {len(seconds)} items are complete")
    for name, reason in incomplete.items():
        tell(f"{name}: {reason}")
    return not incomplete


def _check_used(unused: set[str], request: PaperRequest, name: str) -> None:
    """Raise UserError for settings of the command line that no run has."""
    for override in request.overrides:
        if override.key in unused:
            raise UserError(f"unknown setting {override.key}: no run of {name} has it; kvbench paper {name} --plan")


def _work_of(item: Item, request: PaperRequest, runner: Runner) -> PrintedPage:
    """Return what makes the page of an item under the settings of a command."""
    is_printed = request.published or item.layout.words
    return (PrintedPage if is_printed else resolve_name(item.made_by))(item, request, runner)


def _render(item: Item, work: PrintedPage, request: PaperRequest, out: TextIO | Path, picture: Path | None) -> str:
    """Write the page and picture of an item, or its plan. Returns why it is incomplete ("" if it is not)."""
    lines = work.commands() if request.commands else None
    if request.plan and isinstance(work, ItemSweep):
        lines = work.plan_lines()
    if lines is not None:
        with text_to(out) as stream:
            stream.writelines(f"{line}\n" for line in lines)
        return ""
    result = work.run()
    write_report(result.report, request.format, out)
    if picture is not None and result.draw is not None:
        result.draw(picture)
    return result.incomplete
