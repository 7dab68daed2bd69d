"""One self-contained HTML page of a results folder; it needs no network.

Template, style, script, plotly's library and the data are in one file. The data are one line per cell and, of each,
some samples to read. Texts of models, tasks and users may hold anything: they travel as data, never as markup
(`template`), and the page sets them as text only.
"""

import json
import re
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from kvbench.records import KeptSets, PromptRecord, ResultsFolder, Row, read_sidecar
from kvbench.report.beside import lines_beside
from kvbench.report.colours import COLOURS, DARK, looks
from kvbench.report.formats.html import template
from kvbench.report.frames import Source, place_of
from kvbench.report.output import text_to
from kvbench.report.rows import describer, load
from kvbench.report.selection import Where
from kvbench.report.tables.summary import Summary, summaries
from kvbench.report.tables.windows import windows
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
    page = page_of(source, warn, where, samples)
    names = {"policies": {cell["policy"] for cell in page.cells}}
    names["scores"] = {cell["score"] or cell["policy"] for cell in page.cells}
    colours = {
        kind: {name: (look.colour, look.symbol, look.turn) for name, look in looks(sorted(names[kind])).items()}
        for kind in names
    }
    data = {"cells": page.cells, "samples": page.samples, "prompts": page.prompts, "looks": colours}
    html = rendered(
        "page",
        data,
        title=page.title,
        rows=page.rows,
        shown=page.shown,
        models=sorted({cell["model"] for cell in page.cells}),
        windows=windows((cell["cell"] for cell in page.cells), describer(source)),
        cells=len(page.cells),
        errors=sum(cell["errors"] for cell in page.cells),
        environments=page.environments,
    )
    with text_to(out) as file:
        file.write(html)


def check_page(out: Path) -> None:
    """Raise ValueError for a file that is no .html."""
    if out.suffix not in (".html", ".htm"):
        raise UserError(f"--out {out}: allowed: a file name that ends in .html")


PLOTLY = "plotly-basic.min.js"
"""The bundle of plotly.js 4.1.1 that has lines, bars and pies: a quarter of the whole, so that a page is small."""
MOST_TASKS = 4
"""Tasks that a title names."""
BARS = 96
"""Ranges of positions in which a sample's kept KV pairs are shown."""
LONGEST = 4000
"""Characters of a prediction that a page shows."""
MOST_TOKENS, EDGE, AROUND = 2000, 400, 60
"""Of a prompt of more tokens the first and last are shown, and those around right answers."""
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
    folder = ResultsFolder(place) if place is not None and place.is_dir() else None
    kept = lines_beside(source, KeptSets, warn)
    prompts = {record.prompt_sha256: record for record in (read_sidecar(place, PromptRecord, warn) if place else ())}
    prompt_of = attrgetter("model", "task", "context_length", "sample")
    by_prompt = grouped(rows, prompt_of)

    def worst_first(prompt: tuple[Any, ...]) -> tuple[bool, float, int]:
        answers = by_prompt[prompt]
        values = [row.value for row in answers if row.value is not None]
        return all(row.error is None for row in answers), float(np.mean(values)) if values else -1.0, prompt[-1]

    places = {prompt: place for place, prompt in enumerate(sorted(by_prompt, key=worst_first))}
    ranked = grouped(sorted(rows, key=lambda row: places[prompt_of(row)]), lambda row: row.cell)
    chosen = {cell: ranked[cell][:samples] for cell in dict.fromkeys(row.cell for row in rows)}
    needed = {row.prompt_sha256 for members in chosen.values() for row in members}
    shown = {name: _Shown.of(record) for name, record in prompts.items() if name in needed}
    drill = {cell: [_sample(row, kept, shown) for row in members] for cell, members in chosen.items()}
    names = sorted({row.environment for row in rows if row.environment})
    recorded = [] if folder is None else [folder.read_environment(name) or {} for name in names]
    environments = [{key: content[key] for key in ALLOWED if key in content} for content in recorded if content]
    tasks = sorted({row.task for row in rows})
    if len(tasks) > MOST_TASKS:
        tasks = [*tasks[:MOST_TASKS], f"{len(tasks) - MOST_TASKS} more"]
    cells = [_cell(line) for line in summaries(rows)]
    readable = {name: prompt.data for name, prompt in shown.items()}
    return Page(", ".join(tasks), cells, drill, readable, environments, len(rows), sum(map(len, chosen.values())))


def _cell(line: Summary) -> dict[str, Any]:
    scale = 100 if line.rate else 1
    shown = {name: getattr(line, name) for name in TABLE}
    shown |= {name: None if shown[name] is None else shown[name] * scale for name in ("mean", "low", "high")}
    return shown | {"rate": line.rate, "higher": line.higher}


@dataclass(frozen=True)
class _Shown:
    """What is shown of a prompt, and the positions of the tokens in it; a gap is None."""

    data: dict[str, Any]
    num_tokens: int
    places: list[int | None]

    @classmethod
    def of(cls, record: PromptRecord) -> "_Shown":
        data = {"tail": record.tail, "references": list(record.references)}
        if record.tokens is None:
            return cls(data, 0, [])
        tokens, places = record.tokens, _readable_places(record.tokens, record.references)
        texts = ["" if place is None else tokens[place] for place in places]
        return cls(data | {"tokens": texts, "places": places}, len(tokens), places)


def _readable_places(tokens: Sequence[str], references: Sequence[str]) -> list[int | None]:
    count, shown = len(tokens), set(range(len(tokens)))
    if count > MOST_TOKENS:
        starts = np.cumsum([len(token) for token in tokens])
        mentions = [
            int(np.searchsorted(starts, match.start(), "right"))
            for reference in references
            if reference.strip()
            for match in re.finditer(re.escape(reference), "".join(tokens))
        ]
        shown = {*range(EDGE), *range(count - EDGE, count)}
        shown |= {i for place in mentions[:20] for i in range(place - AROUND, place + AROUND) if 0 <= i < count}
    places: list[int | None] = []
    for place in sorted(shown):
        places += [None] if place and place - 1 not in shown else []
        places.append(place)
    return places


def _sample(row: Row, kept: Mapping[tuple[str, int], KeptSets], prompts: Mapping[str, _Shown]) -> dict[str, Any]:
    prompt = prompts.get(row.prompt_sha256 or "")
    sets = kept.get((row.cell, row.sample))
    shares = None if sets is None or sets.masks is None else _shares(sets.masks, sets.num_tokens)
    bars = tokens = None
    if shares is not None:
        edges = np.linspace(0, len(shares), min(BARS, len(shares)) + 1).astype(int)
        bars = _coded([shares[start:stop].mean() for start, stop in pairwise(edges)])
        if prompt is not None and prompt.num_tokens == len(shares):
            tokens = _coded([0.0 if place is None else shares[place] for place in prompt.places])
    text = row.prediction or ""
    return {
        "sample": row.sample,
        "value": row.value,
        "error": row.error,
        "prediction": text if len(text) <= LONGEST else f"{text[:LONGEST]} ... ({len(text)} characters)",
        "prompt": None if prompt is None else row.prompt_sha256,
        "kept": bars,
        "tokens": tokens,
        "seen": None if sets is None else sets.num_tokens,
    }


def _shares(masks: Sequence[Sequence[bytes]], num_tokens: int) -> np.ndarray:
    """The share of KV pairs that were kept at each position, over layers and heads."""
    packed = np.stack([np.frombuffer(mask, np.uint8) for heads in masks for mask in heads])
    return np.unpackbits(packed, axis=1, count=num_tokens).mean(axis=0)


def _coded(shares: Sequence[float]) -> str:
    """Shares as base64 of bytes 0..255."""
    return b64encode(np.round(np.array(shares) * 255).astype(np.uint8).tobytes()).decode()


def rendered(name: str, data: object, **context: object) -> str:
    """The page `NAME.html.j2` with its data, its script `NAME.js`, and what all pages share: style, script, plotly."""
    from markupsafe import Markup

    parts = {"css": "page.css", "plotly": PLOTLY, "shared": "shared.js", "js": f"{name}.js"}
    folder = files(__package__ or "")
    inline = {part: Markup((folder / file).read_text("utf-8")) for part, file in parts.items()}
    inline["dark"] = Markup(json.dumps(dict(zip(COLOURS, DARK, strict=True))))
    page = template(__package__ or "", f"{name}.html.j2")
    return page.render(**context, **inline, data=Markup(embedded(data)))


def embedded(data: Any) -> str:
    """JSON for the inside of a script element: none of its characters can end the element or start markup."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"), ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
