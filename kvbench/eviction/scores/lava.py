"""LAVa: attention weighed by the largest value of the head, so that scores compare across heads.

LAVa: Layer-wise KV Cache Eviction with Dynamic Budget Allocation (Shen et al. 2025, https://arxiv.org/abs/2509.09754),
equation 5. As in its code, the mean is over the observed rows and the largest norm over the columns before them.
"""

from dataclasses import dataclass
from typing import Literal

from kvbench.cache.kv_cache import LayerCache
from kvbench.eviction.pooling import Weight
from kvbench.eviction.scores.attn import WeightedAttention


@dataclass(frozen=True)
class Lava(WeightedAttention):
    """The rows' attention weights A_ij, merged and pooled, times the largest |v_k| of the KV head.

    over: `candidates`, the columns before the newest protected ones, or `all`.
    """

    over: Literal["candidates", "all"] = "candidates"
    name: str = "lava"

    def weigh(self, layer: LayerCache, recent: int) -> Weight | None:
        values = layer.dense[1] if self.over == "all" else layer.dense[1][:, : layer.lengths[0] - recent]
        if values.shape[1] == 0:
            return None
        return Weight(values.float().norm(p=self.norm, dim=-1).amax(dim=1, keepdim=True))
