"""What commands print to: streams that never fail on a sign, a screen that takes nothing for markup, one-line messages.

Knows nothing of what is said. rich follows NO_COLOR, TERM and COLUMNS by itself.
"""

import codecs
import os
import shutil
import sys
import textwrap
import unicodedata
from typing import TYPE_CHECKING, TextIO

from kvbench.support.printable import printable

if TYPE_CHECKING:
    from rich.console import Console

NEAREST = "kvbench.support.nearest"
NEAR = {"×": "x", "±": "+-", "→": "->", "–": "-", "—": "-", "−": "-", "·": "*", "≤": "<=", "≥": ">=", "µ": "u"}
NEAR |= {"▲": "^", "▼": "v", "†": "+", "‘": "'", "’": "'", "“": '"', "”": '"', "━": "-", "─": "-", "│": "|"}
"""What stands for a sign that an encoding lacks, where its parts do not say it."""


def forgive(*streams: TextIO | None) -> None:
    """Let streams write what their encoding lacks as the nearest that it has, or as an escape."""
    codecs.register_error(NEAREST, _nearest)
    for stream in streams:
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            utf = codecs.lookup(stream.encoding or "ascii").name.startswith("utf")  # type: ignore[union-attr]
            reconfigure(errors="backslashreplace" if utf else NEAREST)


def silence(stream: TextIO) -> None:
    """Let nothing more be written where nobody reads, so that the interpreter does not complain when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def tell(message: object) -> None:
    """Print a message as one line on stderr, whatever was in it; on a terminal its words stay whole."""
    said = f"kvbench: {printable(' '.join(str(message).split()))}"
    if sys.stderr.isatty():
        said = textwrap.fill(said, shutil.get_terminal_size().columns, subsequent_indent="  ", break_on_hyphens=False)
    print(said, file=sys.stderr)


def warn(message: object) -> None:
    """Print a warning as one line on stderr."""
    tell(f"warning: {message}")


def screen(stderr: bool = False) -> "Console":
    """A console that prints texts as they are: no markup, no emoji names, no colour for what looks like a number."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, markup=False, emoji=False)


def _nearest(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(_near, error.object[error.start : error.end])), error.end


def _near(sign: str) -> str:
    parts = unicodedata.normalize("NFKD", sign).encode("ascii", "ignore").decode("ascii")
    return NEAR.get(sign) or parts or sign.encode("ascii", "backslashreplace").decode("ascii")
