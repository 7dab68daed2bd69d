"""Pages from templates: everything inline, and no text that can become markup or control the reader's screen."""

import json
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from kvbench.support.text import printable

if TYPE_CHECKING:
    from jinja2 import Template


def template(package: str, name: str) -> "Template":
    """A template of a package. What it is given is escaped, and printed as `kvbench.support.text.printable` does."""
    from jinja2 import Environment, StrictUndefined  # late, as most commands render no page

    def shown(value: object) -> object:
        return printable(value) if type(value) is str else value  # Markup is trusted

    environment = Environment(autoescape=True, trim_blocks=True, undefined=StrictUndefined, finalize=shown)
    return environment.from_string((files(package) / name).read_text("utf-8"))


def rendered(name: str, data: object, **context: object) -> str:
    """The page `NAME.html.j2` with its data, its script `NAME.js`, and what all pages share: style, script, plotly."""
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    parts = {"css": "page.css", "shared": "shared.js", "js": f"{name}.js"}
    folder = files(__package__ or "")
    inline = {part: Markup((folder / file).read_text("utf-8")) for part, file in parts.items()}
    page = template(__package__ or "", f"{name}.html.j2")
    return page.render(**context, **inline, data=Markup(embedded(data)), plotly=Markup(get_plotlyjs()))


def embedded(data: Any) -> str:
    """JSON for the inside of a script element: none of its characters can end the element or start markup."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"), ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
