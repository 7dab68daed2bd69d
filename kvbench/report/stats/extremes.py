"""Where rates tell nothing about methods: the full cache is at the floor, or all cells are at the ceiling."""

from collections.abc import Iterable

FLOOR = "the full cache is at the floor (0 %): the model does not do this, whatever is evicted"
CEILING = "the full cache and all methods are at the ceiling (100 %): these prompts tell none apart"


def extreme(full: float | None, methods: Iterable[float | None]) -> str | None:
    """Why the means of the full cache and of methods, in 0..1, tell nothing; None if they do."""
    known = [mean for mean in methods if mean is not None]
    if full == 0:
        return FLOOR
    return CEILING if full == 1 and known and all(mean == 1 for mean in known) else None
