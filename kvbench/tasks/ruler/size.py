"""The size of RULER's haystacks: its two searches, and the step back if a prompt is too long.

Official files at NVIDIA/RULER: scripts/data/synthetic/*.py of e40fae1 (2024: linear) and c3f5e3b (2026: bisection).
Every probe draws a new prompt and so advances the generator: the probes are part of the benchmark's definition.
Knows nothing of needles: `tokens` draws a prompt of a size and returns its length.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt
from typing import TypeVar

Drawn = TypeVar("Drawn")

TRIES = 100
"""Attempts at the smallest size before an error; the official loop never ends there."""


class DoesNotFit(Exception):
    """No prompt of the smallest size fits; `longest` is the longest one's length in tokens."""

    def __init__(self, longest: int):
        super().__init__(f"prompts of the smallest size are up to {longest} tokens long")
        self.longest = longest


def bisected(tokens: Callable[[int], int], step: int, high: int, room: int) -> int:
    """2026: the largest size from `step` to `high` whose probe has at most `room` tokens; `step` if none has."""
    low, best = step, step
    while low <= high:
        middle = (low + high) // 2
        if tokens(middle) <= room:
            best, low = middle, middle + 1
        else:
            high = middle - 1
    return best


def bisected_by_rate(tokens: Callable[[int], int], step: int, limit: int, room: int) -> int:
    """2026: `bisected` up to three times the size that has `limit` tokens by the rate of a first probe."""
    high = max(int(limit / (tokens(step) / step) * 3), 2 * step)
    return bisected(tokens, step, high, room)


@dataclass(frozen=True)
class Skim:
    """Probes below a size, which are surely too short: drawn, because they advance the generator, but not counted.

    draw: draws what a prompt of a size draws, without writing the prompt.
    """

    below: int
    draw: Callable[[int], object]


def surely_short(tokens: Callable[[int], int], step: int, room: int, most: int) -> int:
    """A size below which no probe reaches `room` tokens, found in a few draws of `tokens` from a separate generator.

    For prompts of n independent words: the mean length of a word varies by sd/sqrt(n), so a size that is smaller by the
    fraction 4/sqrt(n) than the one found is safe by four standard deviations if the sd of a word's tokens equals their
    mean, and by ten with the tokenizers at hand (sd 0.4 of the mean).
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
    """2024: grow by `step` while probes have fewer than `room` tokens, and step back once if one has more.

    A probe of exactly `room` tokens leaves the size one step too large, as officially. A size above `last_probe`
    (default: `most`) is not probed and becomes `most`. Probes below the size of `skim` are not counted.

    Raises DoesNotFit: the first probe is too long. The official code continues with a haystack of size 0.
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
    """A prompt of at most `room` tokens: redrawn until it fits, each time smaller by `step` down to that.

    Raises DoesNotFit: `TRIES` prompts of the smallest size were too long.
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
