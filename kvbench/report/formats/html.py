"""Tables as one HTML page that needs no network, and the templates and the style sheet of all pages."""

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, TextIO

from kvbench.report.formats.table import Report, head_rows
from kvbench.support.text import printable

if TYPE_CHECKING:
    from jinja2 import Template


def write_html(report: Report, out: TextIO) -> None:
    """Write a report as a page."""
    out.write(html_text(report) + "\n")


def html_text(report: Report, whole: bool = True) -> str:
    """Return a report as a page, with the best values bold and the second ones underlined.

    whole: with head and style; if not, it is a part of another page.
    """
    return template(__package__ or "", "report.html.j2").render(report=report, head_rows=head_rows, whole=whole)


def template(package: str, name: str) -> "Template":
    """Return a template of a package. What it is given is escaped, and printed by `printable`."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined  # late, as most commands render no page

    def shown(value: object) -> object:
        return printable(value) if type(value) is str else value  # Markup is trusted

    loader = FunctionLoader(lambda file: (files(package) / file).read_text("utf-8"))
    environment = Environment(
        loader=loader, autoescape=True, trim_blocks=True, undefined=StrictUndefined, finalize=shown
    )
    return environment.get_template(name)


@cache
def style() -> str:
    """Return the style sheet of all pages."""
    return (files(__package__ or "") / "page.css").read_text("utf-8")
