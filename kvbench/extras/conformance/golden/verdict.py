"""The outcome of one case of a golden file, whatever it checks."""

from dataclasses import dataclass
from math import nan
from typing import Any

TOLERANCE = 1e-9
"""How far a score may be from the official one."""


@dataclass(frozen=True)
class Verdict:
    """A case by its name. `problem` is None if it matches, and `detail` then names what matches.

    absent: the case needs a file that is missing (a text that may not be redistributed): neither match nor failure.
    error: the largest error of an eviction score over its tolerance.
    """

    name: str
    problem: str | None = None
    detail: str = ""
    absent: bool = False
    error: float = nan


def is_number(value: Any) -> bool:
    """Return whether a value of a JSON file is a number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def compare_number(name: str, actual: float, expected: Any) -> Verdict:
    """Return whether a number is the expected one to 1e-9."""
    if is_number(expected) and abs(actual - expected) <= TOLERANCE:
        return Verdict(name, detail=f"{actual:.12g}")
    return Verdict(name, f"got {actual!r}, expected {expected!r}")


def compare_text(name: str, quantity: str, actual: Any, expected: Any) -> Verdict:
    """Return whether a value is exactly the expected one; long texts are shown from their first difference."""
    if actual == expected:
        short = " ".join(str(expected).split())
        return Verdict(name, detail=f"{quantity} {short if len(short) <= 40 else f'{short[:37]}...'}")
    place = 0
    if isinstance(actual, str) and isinstance(expected, str):
        pairs = enumerate(zip(actual, expected, strict=False))
        place = next((index for index, (a, b) in pairs if a != b), min(len(actual), len(expected)))
        actual, expected = actual[place : place + 40], expected[place : place + 40]
    suffix = f" from character {place}" if place else ""
    return Verdict(name, f"{quantity}: got {actual!r}, expected {expected!r}{suffix}")
