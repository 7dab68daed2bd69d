"""What an item of a paper would run: cells, prompts and rows by task. Needs neither model nor data, runs nothing."""

from pathlib import Path
from typing import TextIO

from kvbench.cli.papering import Composed, Entry
from kvbench.report.output import text_to
from kvbench.report.papers.item import Item


def show_plan(item: Item, found: Composed, out: TextIO | Path) -> None:
    """Write a line for each group of cells that read the same prompts, and the sums.

    What is done already is not looked up: that needs the hash of the model, which may not be here.
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
        stream.write(f"\n{cells} cells, at most {prompts} prompts, {rows} rows\n")


def _reads(entry: Entry) -> tuple[str, ...]:
    """What cells agree on that share a prefill, as far as it is known without the model."""
    one = entry.cell
    alone = (one.policy_label, str(one.score_label), str(one.budget)) if one.schedule.prefill_block else ()
    return (repr(one.model), repr(one.task), one.schedule.evict_after, *alone)
