"""Items that measure time and memory (`task=efficiency`): the published numbers, then a table of ours."""

from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from kvbench.cli.terminal import warn
from kvbench.papers.compose import Entry, is_smoke
from kvbench.papers.page import Page
from kvbench.papers.write import write_page
from kvbench.report.output import text_to
from kvbench.report.tables.efficiency import print_efficiency
from kvbench.support.errors import UserError


def write_timed(page: Page, results: Path, cells: Sequence[str], format: str, out: TextIO | Path) -> None:
    """Write the page with the timed cells of a folder below it; ``csv`` is those cells alone, a line each.

    Raises ValueError for a format that a table of times has not.
    """
    if format not in ("text", "markdown", "csv"):
        raise UserError(f"--format {format}: {page.item.name} is a table of times: text|markdown|csv")

    with text_to(out) as stream:
        if format != "csv":
            write_page(page, format, stream)
            stream.write("\nours\n\n" if format == "text" else "\n**ours**\n\n")
        print_efficiency(results, format, stream, warn, {"cell": list(cells)})


def protocol(entries: Sequence[Entry]) -> str:
    """Which model was timed, how often, and which of the item's settings were replaced."""
    models = ", ".join(dict.fromkeys(entry.cell.model.label for entry in entries))
    repeats = max(entry.cell.task.samples for entry in entries)
    changed = "; ".join(dict.fromkeys(text for entry in entries for text in entry.differs))
    differs = f". Differs from the paper's protocol: {changed}" if changed else ""
    said = f"{'SMOKE: ' if is_smoke(entries) else ''}Ours: model {models}, n = {repeats} repetitions{differs}."
    return f"{said} Another machine than the paper's has other times; no difference is shown."
