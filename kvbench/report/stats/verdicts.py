"""The words for what a test shows of B against A: one set for every table, page and file."""

ALPHA = 0.05
"""The chance of one false verdict of a kind in a table."""
BETTER, WORSE, EQUIVALENT, INCONCLUSIVE = "better", "worse", "equivalent", "inconclusive"
"""A difference is shown; the difference is shown to lie within a margin; neither is shown."""
NOT_WORSE = "not worse"
"""One-sided: B is shown to lose at most a margin."""
TONES = {BETTER: "good", WORSE: "bad"}
"""Colours of a verdict in a table."""


def equivalent(margin: str) -> str:
    """Return the verdict with its margin, such as `equivalent (within 5 points)`."""
    return f"{EQUIVALENT} (within {margin})"


def inconclusive(reason: str) -> str:
    """Return the verdict with the reason why nothing could show, such as `inconclusive (floor)`."""
    return f"{INCONCLUSIVE} ({reason})"
