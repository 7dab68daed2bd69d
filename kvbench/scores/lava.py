"""LAVa: attention weighed by the largest value of the head, so that scores compare across heads.

LAVa: Layer-wise KV Cache Eviction with Dynamic Budget Allocation (Shen et al. 2025, https://arxiv.org/abs/2509.09754),
equation 5. As in its code, the mean is over the voting rows and the largest norm over the columns before them.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from kvbench.cache import LayerCache, Window
from kvbench.scores.attn import received
from kvbench.scores.score import Evidence, Reduce, Score
from kvbench.scores.vatp import Norm
from kvbench.shapes import Scores
from kvbench.shaping import Group, Weight


@dataclass(frozen=True)
class Lava(Score):
    """The rows' attention weights A_ij, merged and pooled, times the largest |v_k| of the KV head.

    over: `candidates`, the columns before the newest protected ones, or `all`.
    """

    norm: Norm = 1
    over: Literal["candidates", "all"] = "candidates"
    name: str = "lava"
    evidence: ClassVar[Evidence] = Evidence(window=True)
    group: ClassVar[Group] = "max"

    def __call__(self, layer: LayerCache, rows: Window | None, reduce: Reduce) -> Scores:
        """Scores [heads, tokens] of a dense layer, not yet weighed."""
        assert rows is not None
        return received(layer, rows, reduce)

    def weigh(self, layer: LayerCache, recent: int) -> Weight | None:
        """One norm a KV head; nothing where no column is left to shape."""
        values = layer.dense[1] if self.over == "all" else layer.dense[1][:, : layer.lengths[0] - recent]
        if values.shape[1] == 0:
            return None
        return Weight(values.float().norm(p=self.norm, dim=-1).amax(dim=1, keepdim=True))
