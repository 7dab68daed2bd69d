"""One colour and marker per method, the same in all figures, pages and themes.

The colours have a contrast of at least 3:1 on white (WCAG 2.2, 1.4.11), and are as far apart as 12 such colours can be
for readers with and without deuteranopia (CIEDE2000 at least 20 and 12); one of them is blue. Neighbours differ in
lightness. Grey print and methods of the same colour are told apart by markers.
"""

from collections.abc import Collection, Iterable
from contextlib import suppress
from functools import cache
from itertools import chain
from typing import NamedTuple
from zlib import crc32

import yaml

from kvbench.records.labels import policy_of
from kvbench.report.settings_files import usable_files
from kvbench.support.settings_file import LOADER, LOOK

COLOURS = (
    *("#2a91f5", "#bf6e00", "#136f3e", "#ff49bd", "#483000", "#06a884"),
    *("#b13412", "#8676a7", "#126d75", "#f4666b", "#b61e6c", "#827d53"),
)
DARK = (
    *("#00b6ff", "#a48200", "#39ed9d", "#ffa0ff", "#fcf078", "#8dddd8"),
    *("#ff9300", "#9a7ab8", "#06998c", "#f07967", "#ff3e97", "#7a8d5d"),
)
"""``COLOURS`` on a dark page: of nearly the same hues, with a contrast of at least 5:1."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "p", "h", "<", ">")
SYMBOLS = (
    *("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "x", "star", "pentagon", "hexagon"),
    *("triangle-left", "triangle-right"),
)
"""The names of plotly for ``MARKERS``, which are matplotlib's."""
POLICIES = (
    *("snapkv", "h2o_obcache", "tova_obcache", "streaming_llm", "ada_snapkv", "pyramidkv", "lava", "cake", "kvzip"),
    *("plain", "h2o", "duo_attention", "ada_pyramidkv", "h2o_kvzip", "kvzip_head", "kvzip_uniform", "lava_no_head"),
    *("lava_pyramid", "lava_uniform", "simlayerkv", "chunkkv", "lukv", "tova"),
)
SCORES = (
    *("attn", "obcache_joint", "obcache_value", "obcache_key", "vatp", "caote", "lava", "cake", "kvzip", "key_diff"),
    *("fastcaote", "expected_attention", "key_norm", "attn_max", "exact_removal", "exact_zeroed", "kvzip_logit"),
    *("head_table", "recency", "random", "lagkv", "criticalkv", "", "cap", "kvzip_plus", "cur"),
)
"""A name that is a policy and a score stands at one place in both, and so has one colour.

Files of other policies and scores may name their places (`look:`), up to 143; "" is one of these. Beyond these lists,
markers no longer tell apart what is alike in grey.
"""


class Look(NamedTuple):
    """A colour, and a marker as matplotlib and as plotly name it; ``turn``: how often the colours were used up before.

    Markers of a later turn are hollow.
    """

    colour: str
    marker: str
    symbol: str
    turn: int = 0


def looks(names: Iterable[str]) -> dict[str, Look]:
    """Return the look of each policy or score of a figure; no two have one colour while there are others.

    The first twelve policies and scores keep theirs in all figures. The others do unless one before them has their
    colour. A label with a protocol or settings, as `snapkv@common`, has the colour of its policy where the plain name
    is not there; names beyond the lists begin at their hash.
    """
    names = list(dict.fromkeys(names))
    count = len(COLOURS) * len(MARKERS)
    listed = places()
    bases = {name: policy_of(name) for name in names}
    wishes = {name: listed.get(base, crc32(base.encode()) % count) for name, base in bases.items()}
    order = sorted(names, key=lambda name: (listed.get(bases[name], count), name != bases[name]))
    place_of: dict[str, int] = {}
    for name in order:
        if _is_free(wishes[name], place_of.values()):
            place_of[name] = wishes[name]
    for name in order:
        if name not in place_of:
            after = [(wishes[name] + i) % count for i in range(count)]
            unused = [place for place in after if place not in place_of.values()] or after
            place_of[name] = next((place for place in unused if _is_free(place, place_of.values())), unused[0])
    return {name: _look(place_of[name]) for name in names}


@cache
def places() -> dict[str, int]:
    """Return the place of each policy and score that has one. Never change the result."""
    listed = {name: place for names in (POLICIES, SCORES) for place, name in enumerate(names)}
    for file in chain(usable_files("policy"), usable_files("score")):
        text = file.read_text("utf-8", "replace")
        if f"\n{LOOK}:" in text:
            with suppress(yaml.YAMLError, TypeError):  # its own error comes where it is used
                listed[file.stem] = yaml.load(text, LOADER)[LOOK] % (len(COLOURS) * len(MARKERS))
    return listed


def _is_free(place: int, places: Collection[int]) -> bool:
    """Return whether no other place has its colour."""
    return all((place - other) % len(COLOURS) for other in places)


def _look(place: int) -> Look:
    turn, colour = divmod(place, len(COLOURS))
    marker = (colour + turn) % len(MARKERS)
    return Look(COLOURS[colour], MARKERS[marker], SYMBOLS[marker] + "-open" * (turn > 0), turn)
