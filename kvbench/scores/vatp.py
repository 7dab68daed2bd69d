"""VATP: attention weighed by the value's norm.

Attention Score is not All You Need (Guo, Kamigaito, Watanabe 2024, https://arxiv.org/abs/2406.12335). Its own code sums
over every query and forces the first 20 tokens; LAVa compares with it on SnapKV's window, without code. Here the
attention of the voting rows is pooled, then weighed, and the heads of a group vote by their maximum.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from kvbench.cache import LayerCache, Window
from kvbench.scores.attn import received
from kvbench.scores.score import Evidence, Reduce, Score
from kvbench.shapes import Scores
from kvbench.shaping import Group, Weight

Norm = Literal[1, 2]


@dataclass(frozen=True)
class Vatp(Score):
    """The rows' attention weights A_ij, merged, times |v_j|, right after pooling or before it."""

    norm: Norm = 1
    weight: Literal["after_pool", "before_pool"] = "after_pool"
    name: str = "vatp"
    evidence: ClassVar[Evidence] = Evidence(window=True)
    group: ClassVar[Group] = "max"

    def __call__(self, layer: LayerCache, rows: Window | None, reduce: Reduce) -> Scores:
        """Scores [heads, tokens] of a dense layer, not yet weighed."""
        assert rows is not None
        return received(layer, rows, reduce)

    def weigh(self, layer: LayerCache, recent: int) -> Weight | None:
        """The norms of the values that are shaped."""
        _, values = layer.dense
        norms = values[:, : layer.lengths[0] - recent].float().norm(p=self.norm, dim=-1)
        return Weight(norms, self.weight == "after_pool")
