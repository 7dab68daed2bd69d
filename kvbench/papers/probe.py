"""Items that `kvbench probe` measures: its numbers below the published ones."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from kvbench.cli.errors import tracebacks_in
from kvbench.cli.probe import DEFAULT
from kvbench.cli.progress import progress
from kvbench.cli.terminal import tell
from kvbench.config.compose import combinations
from kvbench.config.overrides import Override, parse
from kvbench.papers.compose import differences
from kvbench.papers.item import Item
from kvbench.papers.page import page
from kvbench.papers.published import Published
from kvbench.papers.smoke import PROMPTS, smoke
from kvbench.papers.write import write_page
from kvbench.probes.compose import PREFIX, asked, unless_named
from kvbench.probes.run import run_probe
from kvbench.records.probed import probed
from kvbench.report.output import text_to
from kvbench.report.plots.probe import draw_probed
from kvbench.report.tables.probe import FORMATS, print_probed
from kvbench.run.plan import Cell
from kvbench.support.errors import UserError


def render_probe(
    item: Item,
    words: Sequence[Override],
    printed: Sequence[Published],
    flags: argparse.Namespace,
    out: TextIO | Path,
    picture: Path | None,
) -> tuple[bool, set[str]]:
    """Measure what is missing and write the page: published numbers, then the probe's table.

    Returns whether no sample failed, and the settings that the item does not have. Raises ValueError for a format that
    a probe's table has not.
    """
    assert item.probe is not None
    if flags.format not in FORMATS:
        raise UserError(f"--format {flags.format}: {item.name} is measured by a probe: {'|'.join(FORMATS)}")
    own = parse([word for run in item.runs for word in run.settings])
    given = {one.key for one in words}
    try:
        unused, kept, used = _words(own, words, flags.smoke)
        found, results = asked(item.probe, [one.canonical for one in (*kept, *used)], None, DEFAULT, tell)
    except FileNotFoundError as error:
        if not flags.smoke or "task" in given:
            raise
        tell(f"{error}; another task stands in")
        unused, kept, used = _words(own, [*words, *parse(PROMPTS)], flags.smoke)
        found, results = asked(item.probe, [one.canonical for one in (*kept, *used)], None, DEFAULT, tell)
    unused &= given
    if flags.plan:
        with text_to(out) as stream:
            stream.write(f"{item.title}\nprobe {item.probe}: {len(found.cells)} cells\n")
            try:
                left = found.plan(results, flags.retry_errors)
            except FileNotFoundError as error:
                stream.write(f"what is done is not known: {error}\n")
            else:
                stream.write(f"{left.rows - left.rows_to_do} of {left.rows} of cells x samples are in {results.path}\n")
        return True, unused
    todo = found.plan(results, flags.retry_errors)
    tell(f"{len(found.cells)} cells, {todo.rows_to_do} of cells x samples to measure")
    if todo.rows_to_do:
        with tracebacks_in(results), progress(todo) as shown:
            run_probe(found, todo, results, shown)
    numbers = probed(results.path, found.samples)
    across = found.probe.across if found.probe.across in (*item.by, "quantity") else "quantity"
    said = [_protocol(found.cells, own, kept, used)]
    with text_to(out) as stream:
        if flags.format in ("text", "markdown"):
            write_page(page(item, [], printed, said, smoke=False), flags.format, stream)
            stream.write("\nours\n\n" if flags.format == "text" else "\n**ours**\n\n")
        print_probed(numbers, item.by, across, flags.format, stream)
    if picture is not None:
        smoke_run = any(cell.model.path is None for cell in found.cells)
        draw_probed(numbers, item.by, picture, "SMOKE" if smoke_run else "")
    return not any(numbers["error"].to_pylist()), unused


def _words(
    own: Sequence[Override], words: Sequence[Override], small: bool
) -> tuple[set[str], list[Override], list[Override]]:
    """Settings that the item does not have, those of its own that are left, and those that replace the others."""
    unused: set[str] = set()
    said = [*smoke(own, words), *words] if small else list(words)
    kept = unless_named(own, said)
    combinations([one for one in (*kept, *said) if not one.key.startswith(PREFIX)], unused=unused)
    return unused, kept, [one for one in said if one.key not in unused]


def _protocol(
    cells: Sequence[Cell], own: Sequence[Override], kept: Sequence[Override], used: Sequence[Override]
) -> str:
    """Which model was measured, and which of the item's settings were replaced."""
    smoke = "SMOKE: " if any(cell.model.path is None for cell in cells) else ""
    changed = "; ".join(differences(own, kept, used))
    differs = f". Differs from the paper's protocol: {changed}" if changed else ""
    models = ", ".join(dict.fromkeys(cell.model.label for cell in cells))
    samples = max(cell.task.samples for cell in cells)
    return f"{smoke}Ours: model {models}, n = {samples} samples at most{differs}."
