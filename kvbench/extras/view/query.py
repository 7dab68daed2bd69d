"""The filters of a live page, as they stand in its address: which cells, and which of their samples."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

from kvbench.support.errors import UserError

FACETS = ("folder", "task", "context_length", "model", "policy", "score", "budget", "n")
"""What cells can be chosen by; `FACETS` of page.js, which has a menu for each."""
WORDS = ("folder", "task", "policy", "score", "budget", "model", "context_length", "variant", "layout", "schedule")
"""Where a word of `find` is looked for, with metric and cell."""
MOST_CELLS = 2
"""Cells whose samples are read side by side."""
LONGEST = 10**6


@dataclass(frozen=True)
class Query:
    """Request in an address.

    facets: allowed values by name. find: words that a cell has. cells: those chosen, at most two. only_wrong: samples
    that are not fully right. text: what an answer or an error holds. sample: its number. page: counted from 1.
    """

    facets: Mapping[str, Sequence[str]] = field(default_factory=dict)
    find: str = ""
    cells: tuple[str, ...] = ()
    only_wrong: bool = False
    text: str = ""
    sample: int | None = None
    page: int = 1

    @classmethod
    def of(cls, address: str) -> "Query":
        """Read what follows the ? of an address. Raises UserError for a sample or page that is no number."""
        try:
            words = parse_qs(address, max_num_fields=1000)
        except ValueError as error:
            raise UserError(f"the address has too many filters: {error}") from None
        last = {name: values[-1] for name, values in words.items()}
        return cls(
            facets={name: words[name] for name in FACETS if name in words},
            find=last.get("find", ""),
            cells=tuple(filter(None, last.get("cells", "").split(",")))[:MOST_CELLS],
            only_wrong=last.get("wrong") == "only",
            text=last.get("text", ""),
            sample=_number("sample", last["sample"]) if "sample" in last else None,
            page=max(1, _number("page", last.get("page", "1"))),
        )

    def choose(self, cells: Sequence[Mapping[str, Any]]) -> list[int]:
        """Return the places of the cells that menus and words leave, as page.js leaves them."""
        places = list(range(len(cells)))
        for name, values in self.facets.items():
            present = {_named(cell.get(name)) for cell in cells}
            if allowed := present & {*values, *map(_plain, values)}:
                places = [place for place in places if _named(cells[place].get(name)) in allowed]
        texts = [[_named(cell.get(name)).lower() for name in (*WORDS, "metric", "cell")] for cell in cells]
        for word in self.find.lower().split():
            is_whole = any(word in values for values in texts)
            places = [place for place in places if _has(texts[place], word, is_whole)]
        return places


def _has(values: Iterable[str], word: str, is_whole: bool) -> bool:
    return any(value == word if is_whole else word in value for value in values)


def _named(value: object) -> str:
    return "null" if value is None else str(value)


def _plain(word: str) -> str:
    """Return a value as an address writes it: plain, or as JSON, as addresses of earlier pages do."""
    if word.startswith('"'):
        try:
            word = json.loads(word)
        except ValueError:
            return word
    return str(word)


def _number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(LONGEST))):
        raise UserError(f"{name}={text[:40]}: allowed: a number, 0 or more")
    return int(text)
