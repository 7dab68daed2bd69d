"""How large RULER makes a haystack: the binary search and the step back of scripts/data/synthetic/niah.py.

Official file at NVIDIA/RULER c3f5e3b. Every probe draws a fresh prompt and so advances the generator; the probes are
part of the benchmark's definition. Knows nothing of needles: a `draw` takes a size and returns a prompt, `length`
counts its tokens.
"""

from collections.abc import Callable, Iterator
from typing import TypeVar

Drawn = TypeVar("Drawn")

TRIES = 100
"""Redraws at the smallest size before giving up; the official loop has no end there."""


class DoesNotFit(Exception):
    """No prompt of the smallest size fits; `longest` is the longest seen, in tokens."""

    def __init__(self, longest: int):
        super().__init__(f"prompts of the smallest size are up to {longest} tokens long")
        self.longest = longest


def prompts(
    draw: Callable[[int], Drawn], length: Callable[[Drawn], int], step: int, limit: int, generated: int
) -> Iterator[Drawn]:
    """Prompts of at most `limit - generated` tokens, without end: search the size once, then shrink what is too long.

    The search's upper bound takes the whole `limit` for the prompt, as the official code does.

    Raises:
        DoesNotFit: `TRIES` prompts of the smallest size were all too long.
    """
    largest = _largest(lambda size: length(draw(size)), step, limit, generated)
    while True:
        yield _one(draw, length, step, limit - generated, largest)


def _largest(tokens: Callable[[int], int], step: int, limit: int, generated: int) -> int:
    """The largest size whose probe fits, by bisection; `step` when none does."""
    per_unit = tokens(step) / step
    low, high, best = step, max(int(limit / per_unit * 3), 2 * step), step
    while low <= high:
        middle = (low + high) // 2
        if tokens(middle) <= limit - generated:
            best, low = middle, middle + 1
        else:
            high = middle - 1
    return best


def _one(draw: Callable[[int], Drawn], length: Callable[[Drawn], int], step: int, limit: int, size: int) -> Drawn:
    """Redraw until a prompt fits, each time one step smaller while the size is above the step."""
    too_long: list[int] = []
    while len(too_long) < TRIES:
        drawn = draw(size)
        tokens = length(drawn)
        if tokens <= limit:
            return drawn
        if size > step:
            size -= step
        else:
            too_long.append(tokens)
    raise DoesNotFit(max(too_long))
