"""One self-contained HTML page of a results folder; it needs no network.

The data are one line per cell and, of each, some samples to read. Texts of models, tasks and users may hold anything:
they travel as data, never as markup (`kvbench.extras.view.rendered`), and the page sets them as text only.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from kvbench.extras.view.rendered import rendered
from kvbench.extras.view.shown_samples import ShownPrompt, sample_data
from kvbench.records import KeptSets, PromptRecord, ResultsFolder, read_sidecar
from kvbench.records.manifest import true_manifest
from kvbench.records.rows import Describe
from kvbench.report.beside import lines_beside
from kvbench.report.colours import looks
from kvbench.report.experiments import Experiments
from kvbench.report.frames import Source, place_of
from kvbench.report.report_file import text_to
from kvbench.report.rows import describer, load
from kvbench.report.selection import Where
from kvbench.report.tables.summary import Summary, summaries
from kvbench.report.tables.usual_values import unsaid_settings
from kvbench.support.errors import UserError
from kvbench.support.grouped import grouped


def write_page(
    source: Source,
    out: Path,
    warn: Callable[[str], None],
    where: Where | None = None,
    samples: int = 20,
) -> None:
    """Write the page of a results folder, a Parquet file or a frame of rows; see `page_of`."""
    check_page(out)
    page, place = page_of(source, warn, where, samples), place_of(source)
    data = {"cells": page.cells, "samples": page.samples, "prompts": page.prompts, "looks": looks_of(page.cells)}
    html = rendered(
        "page",
        data,
        title=page.title,
        rows=page.rows,
        shown=page.shown,
        models=sorted({cell["model"] for cell in page.cells}),
        unsaid_settings=unsaid_settings(
            ((cell["cell"], cell["policy"], cell["score"]) for cell in page.cells), describer(source)
        ),
        cells=len(page.cells),
        errors=sum(cell["errors"] for cell in page.cells),
        environments=page.environments,
        manifest=None if place is None or not place.is_dir() else true_manifest(ResultsFolder(place), warn),
        live=False,
    )
    with text_to(out) as file:
        file.write(html)


def check_page(out: Path) -> None:
    """Raise ValueError for a file that is no .html."""
    if out.suffix not in (".html", ".htm"):
        raise UserError(f"cannot write a page to {str(out)!r}: allowed: a file name that ends in .html")


MOST_TASKS = 4
"""Tasks that a title names."""
ALLOWED = ("source", "packages", "python", "platform", "processor", "processors", "device")
"""Keys of an environment file that a page for others may show."""
_METHOD = ("model", "task", "context_length", "policy", "score", "variant", "layout", "schedule", "seed")
TABLE = (
    *("model", "task", "context_length", "policy", "score", "budget", "variant", "layout", "schedule", "seed"),
    *("n", "mean", "low", "high", "kept_fraction", "kept_tokens", "held_bytes", "full_held_bytes"),
    *("prefill_seconds", "evict_seconds", "new_tokens", "prompt_tokens", "errors", "metric", "cell"),
)


@dataclass(frozen=True)
class Page:
    """The content of a page. `shown` of `rows` rows can be read sample by sample."""

    title: str
    cells: list[dict[str, Any]]
    samples: dict[str, list[dict[str, Any]]]
    prompts: dict[str, dict[str, Any]]
    environments: list[dict[str, Any]]
    rows: int
    shown: int


def page_of(source: Source, warn: Callable[[str], None], where: Where | None = None, samples: int = 20) -> Page:
    """Read a results folder, a Parquet file or a frame of rows into a page with at most `samples` samples a cell.

    Of a cell that has more, samples that failed in some cell of the same task come first, then those with the lowest
    mean over these cells, so that cells can be compared. Raises what `kvbench.report.rows.load` raises, and ValueError
    for fewer than 0 samples.
    """
    if samples < 0:
        raise UserError(f"samples={samples}: allowed: 0 or more, the number of samples per cell that the page holds")
    rows = load(source, warn, where)
    place = place_of(source)
    kept_sets = lines_beside(source, KeptSets, warn)
    prompts = {record.prompt_sha256: record for record in (read_sidecar(place, PromptRecord, warn) if place else ())}
    prompt_of = attrgetter("model", "task", "context_length", "sample")
    by_prompt = grouped(rows, prompt_of)

    def worst_first(prompt: tuple[Any, ...]) -> tuple[bool, float, int]:
        answers = by_prompt[prompt]
        values = [row.value for row in answers if row.value is not None]
        return all(row.error is None for row in answers), float(np.mean(values)) if values else -1.0, prompt[-1]

    ranks = {prompt: place for place, prompt in enumerate(sorted(by_prompt, key=worst_first))}
    ranked = grouped(sorted(rows, key=lambda row: ranks[prompt_of(row)]), lambda row: row.cell)
    chosen = {cell: ranked[cell][:samples] for cell in dict.fromkeys(row.cell for row in rows)}
    prompt_hashes = {row.prompt_sha256 for members in chosen.values() for row in members}
    shown_prompts = {name: ShownPrompt.of(record) for name, record in prompts.items() if name in prompt_hashes}
    samples_of_cell = {
        cell: [
            sample_data(row, kept_sets.get((row.cell, row.sample)), shown_prompts.get(row.prompt_sha256 or ""))
            for row in members
        ]
        for cell, members in chosen.items()
    }
    environments = [] if place is None else environments_of(place, {row.environment for row in rows})
    tasks = sorted({row.task for row in rows})
    if len(tasks) > MOST_TASKS:
        tasks = [*tasks[:MOST_TASKS], f"{len(tasks) - MOST_TASKS} more"]
    cells = cells_data(summaries(rows), describer(source))
    prompt_data = {name: prompt.data for name, prompt in shown_prompts.items()}
    return Page(
        ", ".join(tasks), cells, samples_of_cell, prompt_data, environments, len(rows), sum(map(len, chosen.values()))
    )


def environments_of(place: Path, names: Iterable[str | None]) -> list[dict[str, Any]]:
    """Return the part that a page for others may show of the environments of a folder; a Parquet file has none."""
    folder = ResultsFolder(place)
    recorded = [folder.read_environment(name) for name in sorted(filter(None, names))] if place.is_dir() else []
    return [{key: content[key] for key in ALLOWED if key in content} for content in recorded if content]


def looks_of(cells: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, tuple[str, str, int]]]:
    """Colour, marker and turn of all policies and of all scores of cells."""
    names = {"policies": {cell["policy"] for cell in cells}}
    names["scores"] = {cell["score"] or cell["policy"] for cell in cells}
    return {
        kind: {name: (look.colour, look.symbol, look.turn) for name, look in looks(sorted(names[kind])).items()}
        for kind in names
    }


def cells_data(lines: Sequence[Summary], describe: Describe) -> list[dict[str, Any]]:
    """Return lines of the page's table; a curve joins those that differ in nothing but their budget, by `setting`."""
    experiments = Experiments(("budget",), describe)
    words = experiments.told_apart({line.cell: tuple(getattr(line, name) for name in _METHOD) for line in lines})
    return [_cell_data(line) | {"setting": words[line.cell]} for line in lines]


def _cell_data(line: Summary) -> dict[str, Any]:
    """Return a line of the page's table, as values for JSON; means of rates in %."""
    scale = 100 if line.rate else 1
    shown = {name: getattr(line, name) for name in TABLE}
    shown |= {name: None if shown[name] is None else shown[name] * scale for name in ("mean", "low", "high")}
    return shown | {"rate": line.rate, "higher": line.higher}
