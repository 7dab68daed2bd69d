"""What somebody may have meant by a name that nothing has."""

import difflib
from collections.abc import Iterable

MOST_NAMED, NEAREST = 40, 10
"""Of more names than the first so many are told."""


def closest(name: str, legal: Iterable[str]) -> str:
    """`did you mean X? ` where something is near enough, and the legal set; of a large one what is nearest."""
    legal = sorted(legal)
    near = difflib.get_close_matches(name, legal, n=1, cutoff=0.5)
    more = ""
    if len(legal) > MOST_NAMED:
        named = difflib.get_close_matches(name, legal, n=NEAREST, cutoff=0.0)
        more, legal = f" and {len(legal) - len(named)} more", named
    return (f"did you mean {near[0]}? " if near else "") + f"legal: {', '.join(legal)}{more}"
