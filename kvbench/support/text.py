"""Text for terminals and pages: foreign text made safe to print, and suggestions for misspelt names.

Text from outside may hold escape sequences that move the cursor, change colours or retitle the window, or characters
that reverse the direction of writing and so show other words than the text has.
"""

import difflib
import re
import textwrap
from collections.abc import Iterable
from itertools import accumulate

_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff\U000e0000-\U000e007f]"
)
_BLANK = "\t\n\v\f\r\x85\u2028\u2029"
LISTED, NEAREST = 70, 10
"""Of allowed names that take more than LISTED characters, only some are listed: of the NEAREST to
a misspelt one, else the first."""


def printable(text: str, keep: str = "") -> str:
    r"""Return one line: line ends and tabs become blanks, invisible characters escapes such as \x1b, except the
    characters of `keep`.

    Half of a surrogate pair, which no file can hold, is escaped too, as are U+FFFE and U+FFFF, which no XML can.
    """

    def safe(match: re.Match[str]) -> str:
        if match[0] in keep:
            return match[0]
        return " " if match[0] in _BLANK else match[0].encode("unicode_escape").decode()

    return _UNSAFE.sub(safe, text)


def closest(name: str, allowed: Iterable[str]) -> str:
    """Return `did you mean X? ` if a name is similar, and the allowed names; of a long list the nearest ones."""
    allowed = sorted(allowed)
    longer = [word for word in allowed if name and name.lower() in word.lower()]
    similar = [word for word in longer if word.startswith(name)]
    similar = similar or difflib.get_close_matches(name, allowed, n=1, cutoff=0.5) or longer
    more, shown = "", allowed
    if len(", ".join(allowed)) > LISTED:
        near = [*longer, *difflib.get_close_matches(name, allowed, n=NEAREST, cutoff=0.0)] if similar else allowed
        near = list(dict.fromkeys(near))
        ends = accumulate(len(word) + 2 for word in near)
        shown = [word for i, (word, end) in enumerate(zip(near, ends, strict=True)) if not i or end <= LISTED]
        more = f" and {len(allowed) - len(shown)} more"
    return (f"did you mean {similar[0]}? " if similar else "") + f"allowed: {', '.join(shown)}{more}"


def wrapped(text: str, width: int, indent: str = "") -> list[str]:
    """Return lines of a sentence, folded between words, the later ones indented; a longer word stays whole."""
    return textwrap.wrap(text, max(width, 10), subsequent_indent=indent, break_on_hyphens=False, break_long_words=False)
