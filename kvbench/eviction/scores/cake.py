"""CAKE: attention and how much it shifts among the observed rows.

CAKE (Qin et al. 2025, https://arxiv.org/abs/2503.12491), as in its code (cake/model/modify_llama.py): mean and unbiased
variance over the rows of the window.
"""

from dataclasses import dataclass
from typing import ClassVar

from kvbench.cache.kv_cache import LayerCache, Window
from kvbench.cache.shapes import Scores
from kvbench.eviction.scores.attn import received
from kvbench.eviction.scores.score import Reduce, Score, ScoreInputs
from kvbench.eviction.scores.window import moments
from kvbench.support.errors import UserError


@dataclass(frozen=True)
class Cake(Score):
    """mean_i A_ij + gamma var_i A_ij over the observed rows i.

    A window of one row is refused. If only one row was read since the last eviction, as in a step of decoding, the
    score is its attention alone, as in CAKE's code.
    """

    gamma: int | float = 200.0
    name: str = "cake"
    inputs: ClassVar[ScoreInputs] = ScoreInputs(window=True)
    least_rows: ClassVar[int] = 2
    head_by_head: ClassVar[bool] = True
    any_order: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.gamma >= 0:
            raise UserError(f"score.gamma={self.gamma}: allowed: 0 or more, the weight of the variance, e.g. 200")

    def __call__(self, layer: LayerCache, rows: Window | None, reduce: Reduce) -> Scores:
        assert rows is not None
        if rows.lse.shape[1] == 1:
            return received(layer, rows, "mean")
        mean, variance = moments(layer, rows)
        return mean + self.gamma * variance
