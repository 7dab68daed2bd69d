"""Output of commands: streams that never fail on a character, screens without markup, messages, folded lists.

Knows nothing of what is printed. rich follows NO_COLOR, TERM and COLUMNS by itself.
"""

import codecs
import os
import re
import shutil
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

from kvbench.support.text import printable, wrapped

if TYPE_CHECKING:
    from rich.console import Console

NEAREST = "kvbench.support.text"
NEAR = {"×": "x", "±": "+-", "→": "->", "–": "-", "—": "-", "−": "-", "·": "*", "≤": "<=", "≥": ">=", "µ": "u"}
NEAR |= {"▲": "^", "▼": "v", "†": "+", "‘": "'", "’": "'", "“": '"', "”": '"', "━": "-", "─": "-", "│": "|"}
"""Replacements of characters that an encoding lacks, where their decomposition gives none."""
SENTENCE = 30
"""Columns that a sentence needs to stand beside the other columns of a list."""
GAP = "  "
_COMMAND = re.compile(r"((?:^|[\r\n])\s*)(::|##\[)")
"""What GitHub Actions takes for a command, at the start of a line."""


class Inert:
    """A stream on which no line is a command of GitHub Actions: `::error` at its start gets an apostrophe before it.

    Texts of models, tasks and folders reach the log of a CI so, however a table is folded.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream, self._line_is_blank = stream, True

    def write(self, text: str) -> int:
        """Write a text; returns its length, without what was added."""
        before = "" if self._line_is_blank else "."
        self.stream.write(_COMMAND.sub(r"\1'\2", before + text)[len(before) :])
        *whole, line = re.split("[\r\n]", text)
        self._line_is_blank = not line.strip() and (bool(whole) or self._line_is_blank)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write several."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextmanager
def inert() -> Iterator[None]:
    """While the block runs, stdout is `Inert` unless it is a terminal."""
    stream = sys.stdout
    if not stream.isatty():
        sys.stdout = cast(TextIO, Inert(stream))
    try:
        yield
    finally:
        sys.stdout = stream


def print_commands(lines: Iterable[str]) -> None:
    """Print lines that GitHub Actions is to take for commands."""
    stream = sys.stdout
    print(*lines, sep="\n", file=stream.stream if isinstance(stream, Inert) else stream)


def forgive(*streams: TextIO | None) -> None:
    """Let streams write a character that their encoding lacks as the nearest one that it has, or as an escape.

    A stream whose encoding is for something else than lines of text, as `idna`, gets UTF-8.
    """
    codecs.register_error(NEAREST, _nearest)
    for stream in streams:
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is None:
            continue
        encoding = codecs.lookup(stream.encoding or "ascii").name  # type: ignore[union-attr]
        if not _writes_lines(encoding):
            reconfigure(encoding="utf-8", errors="backslashreplace")
        else:
            reconfigure(errors="backslashreplace" if encoding.startswith("utf") else NEAREST)


def _writes_lines(encoding: str) -> bool:
    """Return whether an encoding can write a line with a letter that it may lack."""
    try:
        "a line: \u00e9\n".encode(encoding, NEAREST)
    except (UnicodeError, LookupError):
        return False
    return True


def open_closed() -> None:
    """Discard what goes to a stream that the caller has closed; no file that is opened later becomes that stream."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w", encoding="utf-8"))  # noqa: SIM115


def silence(stream: TextIO) -> None:
    """Discard further output of a stream that nobody reads, so that the interpreter does not complain when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def tell(message: object) -> None:
    """Print a message as one line on stderr, whatever is in it; a terminal gets it folded between words."""
    line = f"kvbench: {printable(' '.join(str(message).split()))}"
    if sys.stderr.isatty():
        line = "\n".join(wrapped(line, shutil.get_terminal_size().columns, GAP))
    print(line, file=sys.stderr)


def tell_written(out: Path | None) -> None:
    """Say which file --out has made; nothing where a command writes to the screen."""
    if out is not None:
        tell(f"wrote {out}")


def warn(message: object) -> None:
    """Print a warning as one line on stderr."""
    tell(f"warning: {message}")


def warner(partial: bool) -> Callable[[object], None]:
    """`warn`; `partial`: without what it says of rows that are missing."""
    from kvbench.records.lines import MISSING

    return lambda message: None if partial and MISSING in str(message) else warn(message)


def screen(stderr: bool = False) -> "Console":
    """Return a console that prints texts as they are: no markup, no emoji names, no colour for what looks like a
    number.
    """
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, markup=False, emoji=False)


def width_of(console: "Console") -> int | None:
    """Columns of a terminal, or those that COLUMNS asks for; None for a file or a pipe, where nothing is folded."""
    return console.width if console.is_terminal or "COLUMNS" in os.environ else None


def say(console: "Console", text: str) -> None:
    """Print lines; one that is too long for the screen goes on in the next, indented further, between words."""
    width = width_of(console)
    for line in map(printable, text.split("\n")):
        indent = len(line) - len(line.lstrip())
        fits = width is None or len(line) <= width
        for part in [line] if fits else wrapped(line, max(width or 0, 20), " " * indent + GAP):
            console.print(part, soft_wrap=True)


def print_columns(rows: Sequence[Sequence[str]], styles: Sequence[str] = ()) -> None:
    """Print rows whose last column is a sentence; `styles`: of the other columns.

    On a screen the sentence is folded under itself, or on lines of its own where the screen is too narrow.
    """
    from rich.text import Text

    console, rows = screen(), [list(map(printable, row)) for row in rows]
    width = width_of(console)
    sizes = [max(map(len, column)) for column in zip(*rows, strict=True)][:-1]
    left_width = sum(sizes) + len(GAP) * len(sizes)
    for *short, sentence in rows:
        head = Text()
        for text, size, style in zip(short, sizes, (*styles, *("" for _ in short)), strict=False):
            head.append(text, style).append(" " * (size - len(text)) + GAP)
        beside = width is None or width - left_width >= SENTENCE
        indent = left_width if beside else 2 * len(GAP)
        parts = [sentence] if width is None else wrapped(sentence, width - indent)
        parts = parts if beside else ["", *parts]
        lines = [head + Text("".join(parts[:1])), *(Text(" " * indent + part) for part in parts[1:])]
        for line in lines:
            line.rstrip()
            console.print(line, soft_wrap=True)


def _nearest(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    nearest = ""
    for character in error.object[error.start : error.end]:
        parts = unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode("ascii")
        nearest += NEAR.get(character) or parts or character.encode("ascii", "backslashreplace").decode("ascii")
    return nearest, error.end
