"""CAKE: attention and how much it shifts among the voting rows.

CAKE (Qin et al. 2025, https://arxiv.org/abs/2503.12491), as in its code (cake/model/modify_llama.py): mean and unbiased
variance over the rows of the window.
"""

from dataclasses import dataclass
from typing import ClassVar

from kvbench.cache import LayerCache, Window
from kvbench.columns import moments
from kvbench.scores.score import Evidence, Reduce, Score
from kvbench.shapes import Scores
from kvbench.shaping import Group


@dataclass(frozen=True)
class Cake(Score):
    """mean_i A_ij + gamma var_i A_ij over the voting rows i, of which it takes two."""

    gamma: int | float = 200.0
    name: str = "cake"
    evidence: ClassVar[Evidence] = Evidence(window=True)
    group: ClassVar[Group] = "mean"
    least_rows: ClassVar[int] = 2

    def __post_init__(self) -> None:
        if not self.gamma >= 0:
            raise ValueError(f"score.gamma={self.gamma}: the variance is weighed by 0 or more, e.g. 200")

    def __call__(self, layer: LayerCache, rows: Window | None, reduce: Reduce) -> Scores:
        """Scores [heads, tokens] of a dense layer; `reduce` plays no part."""
        assert rows is not None
        mean, variance = moments(layer, rows)
        return mean + self.gamma * variance
