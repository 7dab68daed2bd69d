"""What an item of a paper would run: cells, prompts and rows by task. Needs neither model nor data, runs nothing."""

from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from kvbench.cli.terminal import warn
from kvbench.papers.compose import Composed, Entry
from kvbench.papers.item import Item
from kvbench.records import ResultsFolder, Row, done, read_rows
from kvbench.report.output import text_to
from kvbench.run.estimate import estimate, measure, total_text
from kvbench.run.plan import Plan, plan


def show_plan(item: Item, found: Composed, out: TextIO | Path, retry: bool, measured: bool) -> None:
    """Write a line for each group of cells that read the same prompts, the sums, what of it is done and how long the
    rest will take. The last two need the model's files: their hash is a part of every cell.
    """
    groups: dict[tuple[str, ...], list[Entry]] = {}
    for entry in found.entries:
        groups.setdefault(_reads(entry), []).append(entry)
    with text_to(out) as stream:
        stream.write(f"{item.title}\nplanned for {item.device}\n\n")
        cells = prompts = rows = 0
        for members in groups.values():
            one = members[0].cell
            length = "" if one.task.context_length is None else f", {one.task.context_length} tokens"
            samples = max(entry.cell.task.samples for entry in members)
            made = sum(entry.cell.task.samples for entry in members)
            cells, prompts, rows = cells + len(members), prompts + samples, rows + made
            stream.write(
                f"{one.model.label}, {one.task.name}{length}, {one.schedule}: {len(members)} cells, at most {samples} "
                f"prompts, {made} rows\n"
            )
        for why in found.lacking.values():
            stream.write(f"not there yet: {why}\n")
        for why in found.instead:
            stream.write(f"another task stands in: {why}\n")
        stream.write(f"\n{cells} cells, at most {prompts} prompts, {rows} rows\n")
        for line in _left(found, retry, measured):
            stream.write(f"{line}\n")


def _left(found: Composed, retry: bool, measured: bool) -> Iterator[str]:
    """What is done, and what the rest costs; or why that is not known."""
    if not found.able:
        return
    try:
        planned, results, rows = planned_of(found, retry)
    except FileNotFoundError as error:
        yield f"what is done and what the rest costs is not known: {error}"
        return
    assert found.where is not None
    if measured and measure(planned, rows, results, found.where.kept, found.where.lease_seconds):
        planned, results, rows = planned_of(found, retry)
    had = planned.rows - planned.rows_to_do
    yield f"{had} of {planned.rows} rows are in {results.path}"
    if planned.rows_to_do:
        yield total_text(estimate(planned, rows))


def planned_of(found: Composed, retry: bool) -> tuple[Plan, ResultsFolder, list[Row]]:
    """One plan for all cells of an item, the folder of its rows, and those that are there.

    Raises FileNotFoundError for a model that is not here.
    """
    assert found.where is not None
    rows = read_rows(found.where.dir, warn=warn)
    return plan([entry.cell for entry in found.able], done(rows, retry)), ResultsFolder(found.where.dir), rows


def _reads(entry: Entry) -> tuple[str, ...]:
    """What cells agree on that share a prefill, as far as it is known without the model."""
    one = entry.cell
    alone = (one.policy_label, str(one.score_label), str(one.budget)) if one.schedule.prefill_block else ()
    return (repr(one.model), repr(one.task), one.schedule.evict_after, *alone)
