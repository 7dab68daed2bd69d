"""How large RULER makes a haystack: its two searches, and the step back where a prompt is too long.

Official files at NVIDIA/RULER: scripts/data/synthetic/*.py of e40fae1 (2024: linear) and c3f5e3b (2026: bisection).
Every probe draws a fresh prompt and so advances the generator; the probes are part of the benchmark's definition.
Knows nothing of needles: `tokens` draws a prompt of a size and returns its length.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt
from typing import TypeVar

Drawn = TypeVar("Drawn")

TRIES = 100
"""Redraws at the smallest size before giving up; the official loop has no end there."""


class DoesNotFit(Exception):
    """No prompt of the smallest size fits; `longest` is the longest seen, in tokens."""

    def __init__(self, longest: int):
        super().__init__(f"prompts of the smallest size are up to {longest} tokens long")
        self.longest = longest


def bisected(tokens: Callable[[int], int], step: int, high: int, room: int) -> int:
    """2026: the largest size from `step` to `high` whose probe has at most `room` tokens; `step` when none has."""
    low, best = step, step
    while low <= high:
        middle = (low + high) // 2
        if tokens(middle) <= room:
            best, low = middle, middle + 1
        else:
            high = middle - 1
    return best


@dataclass(frozen=True)
class Skim:
    """Probes below a size that are drawn, because they advance the generator, and not counted: they are too short.

    draw: what draws a prompt of a size and nothing more.
    """

    below: int
    draw: Callable[[int], object]


def surely_short(tokens: Callable[[int], int], step: int, room: int, most: int) -> int:
    """The size below which no probe has `room` tokens, found in a few draws of `tokens` that nothing else sees.

    For prompts of many words drawn alike: of n of them the length scatters by sd/sqrt(n) of a word's tokens, so that a
    size is safe which is smaller than the one found by 4/sqrt(n) of it: four deviations where words scatter as much as
    they are long, ten with the tokenizers at hand (sd 0.4 of the mean).
    """
    high = step
    while high < most and tokens(high) < room:
        high = min(2 * high, most)
    reached = bisected(tokens, max(step, high // 2), high, room - 1)
    return int(reached * (1 - 4 / sqrt(reached)))


def stepped(
    tokens: Callable[[int], int],
    step: int,
    room: int,
    most: int | None = None,
    last_probe: int | None = None,
    skim: Skim | None = None,
) -> int:
    """2024: grow by `step` while probes have fewer than `room` tokens, and step back once when one has more.

    A probe of exactly `room` tokens leaves the size one step too large, as officially. A size above `last_probe`
    (default: `most`) is not probed any more: it becomes `most`. Sizes below that of `skim` are not counted.

    Raises:
        DoesNotFit: the first probe is too long. The official code goes on with a haystack of size 0.
    """
    size, length = step, 0
    last_probe = most if last_probe is None else last_probe
    while length < room:
        if skim is not None and size < skim.below:
            skim.draw(size)
        else:
            length = tokens(size)
        if length > room:
            size -= step
            break
        size += step
        if most is not None and last_probe is not None and size > last_probe:
            return most
    if size < step:
        raise DoesNotFit(length)
    return size


def fitting(draw: Callable[[int], Drawn], length: Callable[[Drawn], int], size: int, step: int, room: int) -> Drawn:
    """A prompt of at most `room` tokens: redrawn until it fits, each time a step smaller while above the step.

    Raises:
        DoesNotFit: `TRIES` prompts of the smallest size were all too long.
    """
    too_long: list[int] = []
    while len(too_long) < TRIES:
        drawn = draw(size)
        tokens = length(drawn)
        if tokens <= room:
            return drawn
        if size > step:
            size -= step
        else:
            too_long.append(tokens)
    raise DoesNotFit(max(too_long))
