"""The style sheet of all pages."""

from functools import cache
from importlib.resources import files


@cache
def style() -> str:
    """Return `page.css`."""
    return (files(__package__ or "") / "page.css").read_text("utf-8")
