"""One self-contained HTML page of a results folder; it needs no network.

Template, style, script, plotly's library and the data are in one file. The data are one line per cell and, of each,
some samples to read. Texts of models, tasks and users may hold anything: they travel as data, never as markup.
`embedded` writes JSON that cannot leave its script element, and the page sets it as text only.
"""

import json
import os
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from kvbench.records import KeptSets, PromptRecord, ResultsFolder, Row, read_kept, read_sidecar
from kvbench.report.output import text_to
from kvbench.report.rows import load
from kvbench.report.selection import Where
from kvbench.report.tables.summary import Summary, summaries
from kvbench.support.errors import UserError


def write_page(
    source: str | os.PathLike[str],
    out: Path,
    warn: Callable[[str], None],
    where: Where | None = None,
    samples: int = 20,
) -> None:
    """Write the page of a results folder, or of a Parquet file of rows; see `page_of`."""
    check_page(out)
    page = page_of(source, warn, where, samples)
    data = {"cells": page.cells, "samples": page.samples, "environments": page.environments}
    html = rendered(
        "page",
        title=page.title,
        rows=page.rows,
        shown=page.shown,
        models=sorted({cell["model"] for cell in page.cells}),
        cells=len(page.cells),
        errors=sum(cell["errors"] for cell in page.cells),
        environments=page.environments,
        data=Markup(embedded(data)),
    )
    with text_to(out) as file:
        file.write(html)


def check_page(out: Path) -> None:
    """Raise ValueError for a file that is no .html."""
    if out.suffix not in (".html", ".htm"):
        raise UserError(f"--out {out}: a page is an .html file")


def rendered(name: str, **context: object) -> str:
    """A template with everything inline: `NAME.html.j2`, its script `NAME.js`, and what all pages share."""
    folder = files("kvbench.report.html")
    template = Environment(autoescape=True, undefined=StrictUndefined).from_string(
        (folder / f"{name}.html.j2").read_text("utf-8")
    )
    parts = {"css": "page.css", "shared": "shared.js", "js": f"{name}.js"}
    inline = {part: Markup((folder / file).read_text("utf-8")) for part, file in parts.items()}
    return template.render(**context, **inline, plotly=Markup(get_plotlyjs()))


BARS = 96
"""Ranges of positions in which a sample's kept KV pairs are shown."""
LONGEST = 4000
"""Characters of a prediction that a page shows."""
ALLOWED = ("source", "packages", "python", "platform", "processor", "processors", "device")
"""Keys of an environment file that a page for others may show."""
TABLE = (
    *("model", "task", "context_length", "policy", "score", "budget", "variant", "layout", "schedule"),
    *("n", "mean", "low", "high", "kept_fraction", "kept_tokens", "cache_bytes", "full_cache_bytes"),
    *("prefill_seconds", "evict_seconds", "new_tokens", "prompt_tokens", "errors", "metric", "cell"),
)


@dataclass(frozen=True)
class Page:
    """The content of a page. `shown` of `rows` rows can be read sample by sample."""

    title: str
    cells: list[dict[str, Any]]
    samples: dict[str, list[dict[str, Any]]]
    environments: list[dict[str, Any]]
    rows: int
    shown: int


def page_of(
    source: str | os.PathLike[str], warn: Callable[[str], None], where: Where | None = None, samples: int = 20
) -> Page:
    """Read a results folder, or a Parquet file of rows, into a page with at most `samples` samples a cell.

    Of a cell that has more, failed samples come first, then the worst, then by number. Raises what
    `kvbench.report.rows.load` raises, and ValueError for fewer than 0 samples.
    """
    if samples < 0:
        raise UserError(f"samples={samples}: 0 or more samples of each cell can be read on the page")
    rows = load(source, warn, where)
    folder = ResultsFolder(source)
    kept = read_kept(source, warn)
    prompts = {record.prompt_sha256: record for record in read_sidecar(source, PromptRecord, warn)}
    by_cell: dict[str, list[Row]] = {}
    for row in rows:
        by_cell.setdefault(row.cell, []).append(row)

    def worst_first(row: Row) -> tuple[bool, float, int]:
        return row.error is None, row.value if row.value is not None else -1.0, row.sample

    chosen = {cell: sorted(members, key=worst_first)[:samples] for cell, members in by_cell.items()}
    drill = {cell: [_sample(row, kept, prompts) for row in members] for cell, members in chosen.items()}
    names = sorted({row.environment for row in rows if row.environment})
    recorded = [folder.read_environment(name) or {} for name in names] if folder.path.is_dir() else []
    environments = [{key: content[key] for key in ALLOWED if key in content} for content in recorded if content]
    title = ", ".join(sorted({row.task for row in rows})[:3])
    cells = [_cell(line) for line in summaries(rows)]
    return Page(title, cells, drill, environments, len(rows), sum(map(len, chosen.values())))


def embedded(data: Any) -> str:
    """JSON for the inside of a script element: none of its characters can end the element or start markup."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"), ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _cell(line: Summary) -> dict[str, Any]:
    scale = 100 if line.rate else 1
    shown = {name: getattr(line, name) for name in TABLE}
    shown |= {name: None if shown[name] is None else shown[name] * scale for name in ("mean", "low", "high")}
    return shown | {"rate": line.rate}


def _sample(row: Row, kept: Mapping[tuple[str, int], KeptSets], prompts: Mapping[str, PromptRecord]) -> dict[str, Any]:
    prompt = prompts.get(row.prompt_sha256 or "")
    sets = kept.get((row.cell, row.sample))
    text = row.prediction or ""
    return {
        "sample": row.sample,
        "value": row.value,
        "error": row.error,
        "prediction": text if len(text) <= LONGEST else f"{text[:LONGEST]} ... ({len(text)} characters)",
        "references": None if prompt is None else list(prompt.references),
        "tail": None if prompt is None else prompt.tail,
        "kept": None if sets is None or sets.masks is None else _shares(sets.masks, sets.num_tokens),
        "seen": None if sets is None else sets.num_tokens,
    }


def _shares(masks: Sequence[Sequence[bytes]], num_tokens: int) -> str:
    """The share of KV pairs that stayed in each of `BARS` ranges of positions, as base64 of bytes 0..255."""
    bits = [np.unpackbits(np.frombuffer(mask, np.uint8))[:num_tokens] for heads in masks for mask in heads]
    kept = np.mean(bits, axis=0)
    edges = np.linspace(0, num_tokens, min(BARS, num_tokens) + 1).astype(int)
    shares = [kept[start:stop].mean() for start, stop in pairwise(edges)]
    return b64encode(np.round(np.array(shares) * 255).astype(np.uint8).tobytes()).decode()
