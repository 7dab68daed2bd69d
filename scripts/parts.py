"""The parts of a page that are made: each between <!-- name --> and <!-- end of name -->."""

from collections.abc import Callable, Mapping


def with_parts(text: str, parts: Mapping[str, Callable[[], str]]) -> str:
    """A page with every part made anew. Raises ValueError where a marker is missing."""
    for name, make in parts.items():
        begin, end = f"<!-- {name} -->\n", f"\n<!-- end of {name} -->"
        before, beginning, rest = text.partition(begin)
        _, ending, after = rest.partition(end)
        if not (beginning and ending):
            raise ValueError(f"the page has no part {name}")
        text = f"{before}{begin}{make()}{end}{after}"
    return text
