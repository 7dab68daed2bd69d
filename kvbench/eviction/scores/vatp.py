"""VATP: attention weighed by the value's norm.

Attention Score is not All You Need (Guo, Kamigaito, Watanabe 2024, https://arxiv.org/abs/2406.12335). Its own code sums
over every query and always keeps the first 20 tokens; LAVa compares with it on SnapKV's window, without code. Here the
attention of the observed rows is pooled, then weighted, and reduced over the heads of a group by the maximum.
"""

from dataclasses import dataclass
from typing import Literal

from kvbench.cache.kv_cache import LayerCache
from kvbench.eviction.pooling import Weight
from kvbench.eviction.scores.attn import WeightedAttention


@dataclass(frozen=True)
class Vatp(WeightedAttention):
    """The rows' attention weights A_ij, merged, times |v_j|, right after pooling or before it."""

    weight: Literal["after_pool", "before_pool"] = "after_pool"
    name: str = "vatp"

    def weigh(self, layer: LayerCache, recent: int) -> Weight | None:
        _, values = layer.dense
        norms = values[:, : layer.lengths[0] - recent].float().norm(p=self.norm, dim=-1)
        return Weight(norms, self.weight == "after_pool")
