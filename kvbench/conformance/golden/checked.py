"""What became of one case of a golden file, whatever it is about."""

from dataclasses import dataclass
from typing import Any

TOLERANCE = 1e-9
"""How far a score may be from the official one."""


@dataclass(frozen=True)
class Checked:
    """A case by its name: `problem` is None where it matches. `said` is the number that matches.

    absent: what a case is about is not here (a text that may not be passed on): it is neither a match nor a failure.
    """

    name: str
    problem: str | None = None
    said: str = ""
    absent: bool = False


def number(name: str, got: float, expected: Any) -> Checked:
    """Whether a number is the expected one to 1e-9."""
    wanted = isinstance(expected, (int, float)) and not isinstance(expected, bool)
    if wanted and abs(got - expected) <= TOLERANCE:
        return Checked(name, said=f"{got:.12g}")
    return Checked(name, f"got {got!r}, expected {expected!r}")


def text(name: str, what: str, got: Any, expected: Any) -> Checked:
    """Whether something is exactly the expected one; long texts are shown from where they begin to differ."""
    if got == expected:
        return Checked(name, said=f"{what} {_short(expected)}")
    place = 0
    if isinstance(got, str) and isinstance(expected, str):
        place = next(
            (i for i, (a, b) in enumerate(zip(got, expected, strict=False)) if a != b), min(len(got), len(expected))
        )
        got, expected = got[place : place + 40], expected[place : place + 40]
    where = f" from character {place}" if place else ""
    return Checked(name, f"{what}: got {got!r}, expected {expected!r}{where}")


def _short(value: Any) -> str:
    shown = " ".join(str(value).split())
    return shown if len(shown) <= 40 else f"{shown[:37]}..."
