"""Text of others (models, data, file names, hosts) as one line that a terminal or a page only prints.

An escape sequence in an answer would otherwise move the cursor, change colours or retitle the window, and a sign that
turns the direction of writing would show other words than are there.
"""

import re

_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff\U000e0000-\U000e007f]")
_BLANK = "\t\n\v\f\r\x85\u2028\u2029"


def printable(text: str) -> str:
    r"""The text with a blank for every end of a line or tab, and an escape such as \x1b for what is not seen.

    Half of a surrogate pair, which no file can hold, is escaped too.
    """
    return _UNSEEN.sub(lambda found: _shown(found[0]), text)


def _shown(sign: str) -> str:
    return " " if sign in _BLANK else sign.encode("unicode_escape").decode("ascii")
