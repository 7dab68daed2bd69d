"""Lists whose last column is a sentence: folded under itself, or on lines of its own where the screen is too narrow."""

import os
import textwrap
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from kvbench.support.printable import printable

LEAST = 30
"""Columns that a sentence needs beside the others."""
APART = "  "


def width_of(console: Console) -> int | None:
    """Columns of a terminal, or those that COLUMNS asks for; None for a file or a pipe, where nothing is folded."""
    return console.width if console.is_terminal or "COLUMNS" in os.environ else None


def hanging(rows: Sequence[Sequence[str]], width: int | None, styles: Sequence[str] = ()) -> Iterator[Text]:
    """The lines of a list; `styles` are those of its columns."""
    rows = [list(map(printable, row)) for row in rows]
    sizes = [max(map(len, column)) for column in zip(*rows, strict=True)][:-1]
    left = sum(sizes) + len(APART) * len(sizes)
    for *short, sentence in rows:
        head = Text()
        for place, (text, size) in enumerate(zip(short, sizes, strict=True)):
            head.append(text, styles[place] if place < len(styles) else "")
            head.append(" " * (size - len(text)) + APART)
        if width is None:
            yield _stripped(head + Text(sentence))
        elif width - left >= LEAST:
            first, *others = folded(sentence, width - left) or [""]
            yield _stripped(head + Text(first))
            yield from (Text(" " * left + line) for line in others)
        else:
            yield _stripped(head)
            yield from (Text(APART * 2 + line) for line in folded(sentence, width - 2 * len(APART)))


def say(console: Console, text: str) -> None:
    """Print lines; on a screen that is too narrow one goes on in the next, indented further, with its words whole."""
    width = width_of(console)
    for said in map(printable, text.split("\n")):
        left = " " * (len(said) - len(said.lstrip()))
        whole = width is None or len(said) <= width
        for line in [said] if whole else textwrap.wrap(said, max(width or 0, 20), subsequent_indent=left + "  "):
            console.print(line, soft_wrap=True)


def folded(text: str, width: int) -> list[str]:
    """Lines of a sentence, words whole where they fit."""
    return textwrap.wrap(text, max(width, 10), break_on_hyphens=False)


def _stripped(line: Text) -> Text:
    line.rstrip()
    return line
