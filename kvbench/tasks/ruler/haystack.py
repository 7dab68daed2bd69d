"""What RULER hides needles in: repeated noise, other needles, or essays.

scripts/data/synthetic/niah.py of NVIDIA/RULER at e40fae1 (2024, where noise is called repeat) and c3f5e3b (2026).
"""

import random
import re
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
DEPTHS = [int(depth) for depth in np.round(np.linspace(0, 100, num=40))]
"""Percent of the sentences that stand before a needle in essays."""


class Haystack(Protocol):
    """A text of a given size around needles."""

    def around(self, needles: Sequence[str], size: int, rng: random.Random) -> str:
        """The text, its positions drawn from `rng`."""
        ...


class Lines:
    """Lines of one sentence or a few, `line` called once for each; sizes are lines, needles are lines of their own."""

    def __init__(self, line: Callable[[random.Random], str]):
        self._line = line

    def around(self, needles: Sequence[str], size: int, rng: random.Random) -> str:
        """Needles from the last position to the first, so that the first of them stands last."""
        lines = [self._line(rng) for _ in range(size)]
        places = sorted(rng.sample(range(size), len(needles)), reverse=True)
        for place, needle in zip(places, needles, strict=True):
            lines.insert(place, needle)
        return "\n".join(lines)


class Essays:
    """A prefix of the essays; sizes are words. Beyond the last word it starts again, if `wraps`, or ends."""

    def __init__(self, text: str, split_sentences: Callable[[str], list[str]], wraps: bool):
        self._words = re.sub(r"\s+", " ", text).split(" ")
        self._split = split_sentences
        self._wraps = wraps
        self._known: dict[int, list[str]] = {}

    def __len__(self) -> int:
        return len(self._words)

    def around(self, needles: Sequence[str], size: int, rng: random.Random) -> str:
        """Needle i before the i-th of the sorted depths; all joined by one space."""
        sentences = self._sentences(size)
        places = sorted(int(len(sentences) * (depth / 100)) for depth in rng.sample(DEPTHS, len(needles)))
        parts, start = [], 0
        for place, needle in zip(places, needles, strict=True):
            parts += [" ".join(sentences[start:place]), needle]
            start = place
        return " ".join([*parts, " ".join(sentences[start:])])

    def _sentences(self, size: int) -> list[str]:
        """Sentences of the first `size` words; sizes recur, splitting a long text takes its time."""
        if size not in self._known:
            times = -(-size // len(self._words)) if self._wraps else 1
            self._known[size] = self._split(" ".join((self._words * times)[:size]).strip())
        return self._known[size]
