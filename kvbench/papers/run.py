"""`kvbench paper NAME`: one item planned, run and rendered."""

import argparse
import sys
from collections.abc import Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from kvbench.cli.errors import Exit
from kvbench.cli.sweep import made
from kvbench.cli.terminal import warn
from kvbench.config.overrides import Override, parse
from kvbench.config.sweep import Sweep, launcher_of
from kvbench.papers.compose import Composed, composed, is_smoke, item_of
from kvbench.papers.costs import costs
from kvbench.papers.curves import draw_curves
from kvbench.papers.item import Item
from kvbench.papers.page import Page, page
from kvbench.papers.plan import planned_of, show_plan
from kvbench.papers.probe import render_probe
from kvbench.papers.published import published
from kvbench.papers.timed import protocol, write_timed
from kvbench.papers.wins import draw_wins
from kvbench.papers.write import write_page
from kvbench.records import check_writable, places
from kvbench.report.plots.canvas import check_file, save, stamped, styled
from kvbench.report.plots.plot import KINDS
from kvbench.report.plots.request import Request
from kvbench.report.tables.summary import summaries
from kvbench.support import paths
from kvbench.support.errors import MissingFile, UserError
from kvbench.support.text import closest


@dataclass(frozen=True)
class Rendered:
    """What a page should show and does not, in words; `unused` are settings that nothing of it has."""

    short: str
    unused: frozenset[str]


def one(name: str, words: Sequence[str], flags: argparse.Namespace) -> int:
    """Render one item. Raises ValueError for a name of none and for settings that it has not."""
    item = item_of(name)
    picture = None if flags.plot is None else check_file(flags.plot)
    if picture is not None and item.picture is None and item.kind != "probe":
        raise UserError(f"{name} is a table: leave --plot out; kvbench paper list shows the figures")
    asked = parse(words)
    check_here(asked)
    check_roots(asked)
    rendered = render(item, asked, flags, flags.out or sys.stdout, picture)
    return Exit.INCOMPLETE if rendered.short else Exit.OK


def render(
    item: Item,
    words: Sequence[Override],
    flags: argparse.Namespace,
    out: TextIO | Path,
    picture: Path | None,
    strict: bool = True,
) -> Rendered:
    """Run what is missing of an item and write its page and picture, or its plan where that was asked for. `strict`
    refuses settings that no run of it has.

    Raises FileNotFoundError where no task of it has data, or its model is not there.
    """
    printed = published(item, paths.papers())
    if flags.published or not item.runs:
        given = costs(printed, item.keys) if item.kind == "costs" and not flags.published else {}
        write_page(page(item, [], printed, _said(item), smoke=False, given=given), flags.format, out)
        return Rendered("", frozenset(one.key for one in words))
    if item.kind == "probe":
        whole, unused = render_probe(item, words, printed, flags, out, picture)
        if strict:
            check_used(unused, words, item.name)
        return Rendered("" if whole else "samples have failed", frozenset(unused))
    found = composed(item, words, flags.smoke)
    if strict:
        check_used(found.unused, words, item.name)
    if flags.plan:
        show_plan(item, found, out, flags.retry_errors, flags.measure)
        return Rendered("", frozenset(found.unused))
    if not found.able:
        raise MissingFile("; ".join(dict.fromkeys(found.lacking.values())))
    sweep = _sweep(found, [one.text for one in words], flags.retry_errors)
    rows = made(sweep)
    summed = {one.cell: one for one in summaries(rows)}
    cells = [entry.placed(summed) for entry in found.able]
    said = [f"No data for {name}: {why}." for name, why in found.lacking.items()]
    if found.lacking and item.layout.average is not None and is_smoke(found.able):
        said.append("Averages are over the tasks that are there.")
    said += [f"Another task stands in, for there is no data: {why}." for why in found.instead]
    failed = sum(row.error is not None for row in rows)
    short = [f"no data for {', '.join(found.lacking)}"] if found.lacking else []
    short += [f"{failed} of {len(rows)} rows failed"] if failed else []
    if item.kind == "efficiency":
        shown = page(item, [], printed, [*said, protocol(found.able)], smoke=False)
        write_timed(shown, sweep.results.path, [cell.id for cell in sweep.plan.cells], flags.format, out)
    else:
        shown = page(item, cells, printed, said, is_smoke(found.able))
        write_page(shown, flags.format, out)
    if picture is not None:
        _draw(shown, sweep, picture, is_smoke(found.able))
    return Rendered("; ".join(short), frozenset(found.unused))


def _draw(shown: Page, sweep: Sweep, picture: Path, smoke: bool) -> None:
    """Draw an item that is a figure: of its page's numbers, or as a plot of its rows."""
    kind = shown.item.picture
    assert kind is not None
    with styled():
        if kind in ("curves", "wins"):
            save(draw_curves(shown) if kind == "curves" else draw_wins(shown), picture)
            return
        where = {"cell": [cell.id for cell in sweep.plan.cells]}
        settings = {"y": shown.item.layout.y} if kind == "latency" else {}
        asked = Request(sweep.results.path, where, settings, warn)
        figure = KINDS[kind].draw(asked)
        save(stamped(figure, "SMOKE") if smoke else figure, picture)


def check_here(words: Sequence[Override]) -> None:
    """Raise ValueError for a launcher: an item runs in this process."""
    for one in words:
        if one.key == "launcher" or one.key.startswith("launcher."):
            raise UserError(
                f"{one.text}: kvbench paper runs in this process; start the same command several times, "
                "on several machines too: processes share the work of one results.dir"
            )


def check_roots(words: Sequence[Override]) -> None:
    """Raise ValueError for a setting that begins like none, before anything is composed."""
    roots = ("budget", "data", "model", "policy", "probe", "results", "schedule", "score", "seed", "store", "task")
    for one in words:
        if one.key.partition(".")[0] not in (*roots, "logger"):
            raise UserError(f"unknown setting {one.key}: {closest(one.key.partition('.')[0], roots)}")


def check_used(unused: Set[str], words: Sequence[Override], name: str) -> None:
    """Raise ValueError for settings of the command line that nothing has."""
    for one in words:
        if one.key in unused:
            raise UserError(f"unknown setting {one.key}: no run of {name} has it; kvbench paper {name} --plan")


def _said(item: Item) -> list[str]:
    return ["Ours: from the formulas of the paper (eqs. 53 to 56), not measured."] if item.kind == "costs" else []


def _sweep(found: Composed, words: Sequence[str], retry: bool) -> Sweep:
    """One plan for all cells of an item. Raises ValueError for a folder that cannot be written."""
    assert found.where is not None
    check_writable(found.where.dir)
    since = places(found.where.dir)
    planned, folder, rows = planned_of(found, retry)
    return Sweep(planned, folder, rows, since, found.where, tuple(words), launcher_of([]), retry, None)
