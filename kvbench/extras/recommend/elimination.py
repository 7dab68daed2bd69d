"""Which of several methods lose too much, decided while prompts come in.

Each method has two tests, which may be looked at at any time (`kvbench.extras.recommend.anytime_tests`): that it loses
more than is tolerated, and that it loses less. Holm's procedure over all methods, once for each of the two questions,
keeps the chance of any wrong answer to it at alpha, over all methods and looks: a p of `anytime_tests` stays valid
however often it was looked at, and the procedure needs no independence. Methods that were decided get no further
prompts; they stay in the number that is corrected for. Successive elimination: Even-Dar, Mannor and Mansour, Journal
of Machine Learning Research 7 (2006) 1079-1105.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from kvbench.extras.recommend.anytime_tests import p_above, p_below
from kvbench.report.stats.paired_tests import holm
from kvbench.report.stats.verdicts import INCONCLUSIVE, NOT_WORSE, WORSE

Decision = Literal["worse", "not worse", "inconclusive"]
"""Shown to lose more than is tolerated; shown to lose no more; neither."""


@dataclass(frozen=True)
class Evidence:
    """The smallest p so far that a method loses no more than is tolerated, and that it loses as much or more."""

    worse: float = 1.0
    within: float = 1.0

    def looked(self, losses: np.ndarray, tolerated: float) -> "Evidence":
        """With the losses of all prompts so far, each in -1..1."""
        return Evidence(min(self.worse, p_above(losses, tolerated)), min(self.within, p_below(losses, tolerated)))


def decisions(methods: Sequence[Evidence], alpha: float) -> list[Decision]:
    """Decide on each method. A decision stays as evidence grows."""
    worse, within = (holm([getattr(each, name) for each in methods]) for name in ("worse", "within"))
    return [
        WORSE if above <= alpha else NOT_WORSE if below <= alpha else INCONCLUSIVE
        for above, below in zip(worse, within, strict=True)
    ]


def next_levels(methods: Sequence[Evidence], alpha: float) -> tuple[float, float]:
    """Return the p that would show one more method to be worse, and the p that would show one more not to be."""
    decided = decisions(methods, alpha)
    worse, not_worse = (alpha / max(1, len(decided) - decided.count(name)) for name in (WORSE, NOT_WORSE))
    return worse, not_worse
