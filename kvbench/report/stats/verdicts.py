"""The words for what a test shows of B against A, or that nothing can show: one set for every table, page and file."""

from collections.abc import Iterable

ALPHA = 0.05
"""The chance of one false verdict of a kind in a table."""
BETTER, WORSE, EQUIVALENT, INCONCLUSIVE = "better", "worse", "equivalent", "inconclusive"
"""A difference is shown; the difference is shown to lie within a margin; neither is shown."""
NOT_WORSE = "not worse"
"""One-sided: B is shown to lose at most a margin."""
FLOOR = "the full cache is at the floor (0 %): the model does not do this, whatever is evicted"
CEILING = "the full cache and all methods are at the ceiling (100 %): these prompts tell none apart"
"""Why rates tell nothing about methods."""
TONES = {BETTER: "good", WORSE: "bad"}
"""Colours of a verdict in a table."""


def equivalent(margin: str) -> str:
    """Return the verdict with its margin, such as `equivalent (within 5 points)`."""
    return f"{EQUIVALENT} (within {margin})"


def inconclusive(reason: str) -> str:
    """Return the verdict with the reason why nothing could show, such as `inconclusive (floor)`."""
    return f"{INCONCLUSIVE} ({reason})"


def extreme(full: float | None, methods: Iterable[float | None]) -> str | None:
    """Why the means of the full cache and of methods, in 0..1, tell nothing; None if they do."""
    known = [mean for mean in methods if mean is not None]
    if full == 0:
        return FLOOR
    return CEILING if full == 1 and known and all(mean == 1 for mean in known) else None
