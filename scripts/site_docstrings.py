"""How the API pages show docstrings: sentences of the form `field: what it is` become a list."""

import re
from collections.abc import Collection
from typing import Any

import griffe

NAMED = re.compile(r"(?:^|(?<=[.;]\s))([a-z]\w*(?:,\s[a-z]\w*)*): (?=\S)")


def listed(text: str, known: Collection[str]) -> str:
    """A docstring in which what is said of these names is a list, an item each."""
    return "\n\n".join(_listed(paragraph, known) for paragraph in text.split("\n\n"))


def _listed(paragraph: str, known: Collection[str]) -> str:
    """A paragraph; what stands before the first name stays text."""
    matches = [
        match for match in NAMED.finditer(paragraph) if all(name in known for name in re.split(r",\s", match[1]))
    ]
    if not matches:
        return paragraph
    items = []
    for match, stop in zip(matches, [*(match.start() for match in matches[1:]), len(paragraph)], strict=True):
        names = ", ".join(f"`{name}`" for name in re.split(r",\s", match[1]))
        items.append(f"- {names}: {' '.join(paragraph[match.end() : stop].split())}")
    before = paragraph[: matches[0].start()].strip()
    return "\n".join([before, ""] * bool(before) + items)


class Fields(griffe.Extension):
    """Applied to every class and function that is found."""

    def on_class(self, *, cls: griffe.Class, **kwargs: Any) -> None:
        """Fields of a class."""
        if cls.docstring is not None:
            cls.docstring.value = listed(cls.docstring.value, cls.members)

    def on_function(self, *, func: griffe.Function, **kwargs: Any) -> None:
        """Parameters of a function."""
        if func.docstring is not None:
            func.docstring.value = listed(func.docstring.value, [parameter.name for parameter in func.parameters])
