"""The page itself: template, style, script and plotly's library in one file that asks no network for anything."""

import os
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from kvbench.report.html.data import embedded, page_of
from kvbench.report.output import text_to
from kvbench.report.tables.where import Where
from kvbench.support.errors import UserError


def write_page(
    source: str | os.PathLike[str],
    out: Path,
    warn: Callable[[str], None],
    where: Where | None = None,
    samples: int = 20,
) -> None:
    """Write the page of a results folder, or of a Parquet file of rows, at `out`.

    Raises what `page_of` raises, and ValueError for a file that is no .html.
    """
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
    here = files("kvbench.report.html")
    template = Environment(autoescape=True, undefined=StrictUndefined).from_string(
        (here / f"{name}.html.j2").read_text("utf-8")
    )
    parts = {"css": "page.css", "shared": "shared.js", "js": f"{name}.js"}
    inline = {part: Markup((here / file).read_text("utf-8")) for part, file in parts.items()}
    return template.render(**context, **inline, plotly=Markup(get_plotlyjs()))
