"""A page from its template: as one file with all that it needs, or beside the files that a server has.

``NAME.html.j2`` is the page, ``NAME.js`` its script; ``base.html.j2``, ``shared.js``, the style of all pages and
plotly's library belong to each. In a page of one file the library is compressed: it would be most of its bytes.
"""

import gzip
import json
from base64 import b64encode
from functools import cache
from importlib.resources import files
from typing import Any

from kvbench.report.colours import COLOURS, DARK
from kvbench.report.formats.html import style, template

PLOTLY = "plotly-basic.min.js"
"""The bundle of plotly.js 4.1.1 that has lines, bars and pies: a quarter of the whole, so that a page is small."""
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:"
"""What a page of one file may load: nothing."""


def rendered(name: str, data: object, served: bool = False, **context: object) -> str:
    """Return the page NAME with its data. `served`: style and scripts are links to `page.css`, `plotly.js` and
    `NAME.js`.
    """
    from markupsafe import Markup

    inline = {} if served else {"css": style(), "plotly": _compressed(PLOTLY), "script": script_of(name)}
    parts = {part: Markup(text) for part, text in inline.items()}
    page = template(__package__ or "", f"{name}.html.j2")
    return page.render(**context, **parts, name=name, served=served, policy=Markup(POLICY), data=Markup(embedded(data)))


def script_of(name: str) -> str:
    """Return the script of a page: the colours on dark pages, what all pages share, and its own."""
    dark = json.dumps(dict(zip(COLOURS, DARK, strict=True)))
    return f'"use strict"; const DARK = {dark};\n{text_of("shared.js")}{text_of(f"{name}.js")}'


@cache
def text_of(file: str) -> str:
    """Return a file beside the templates."""
    return (files(__package__ or "") / file).read_text("utf-8")


@cache
def _compressed(file: str) -> str:
    """Return a file as base64 of gzip, always of the same bytes."""
    return b64encode(gzip.compress(text_of(file).encode(), 9, mtime=0)).decode()


def embedded(data: Any) -> str:
    """JSON for the inside of a script element: none of its characters can end the element or start markup."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"), ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
