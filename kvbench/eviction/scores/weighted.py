"""Attention weighed by the norms of values, merged over the query heads of a group by the maximum: LAVa and VATP."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from kvbench.cache.kv_cache import LayerCache, Window
from kvbench.cache.shapes import Scores
from kvbench.eviction.pooling import Group, Weight
from kvbench.eviction.scores.attn import received
from kvbench.eviction.scores.score import Reduce, Score, ScoreInputs


@dataclass(frozen=True)
class WeightedAttention(Score):
    """Attention weights A_ij merged over the observed rows, to be multiplied by `weigh`. norm: L1 or L2, of values."""

    norm: Literal[1, 2] = 1
    inputs: ClassVar[ScoreInputs] = ScoreInputs(window=True)
    group: ClassVar[Group] = "max"
    head_by_head: ClassVar[bool] = True

    def __call__(self, layer: LayerCache, rows: Window | None, reduce: Reduce) -> Scores:
        assert rows is not None
        return received(layer, rows, reduce)


@dataclass(frozen=True)
class Lava(WeightedAttention):
    """The rows' attention weights A_ij, merged and pooled, times the largest |v_k| of the KV head.

    LAVa: Layer-wise KV Cache Eviction with Dynamic Budget Allocation (Shen et al. 2025,
    https://arxiv.org/abs/2509.09754), equation 5: scores compare across heads. over: `candidates`, the columns before
    the newest protected ones, as in its code, or `all`.
    """

    over: Literal["candidates", "all"] = "candidates"
    name: str = "lava"

    def weigh(self, layer: LayerCache, recent: int) -> Weight | None:
        values = layer.dense[1] if self.over == "all" else layer.dense[1][:, : layer.lengths[0] - recent]
        if values.shape[1] == 0:
            return None
        return Weight(values.float().norm(p=self.norm, dim=-1).amax(dim=1, keepdim=True))


@dataclass(frozen=True)
class Vatp(WeightedAttention):
    """The rows' attention weights A_ij, merged, times |v_j|, right after pooling or before it.

    Attention Score is not All You Need (Guo, Kamigaito, Watanabe 2024, https://arxiv.org/abs/2406.12335). Its own code
    sums over every query and always keeps the first 20 tokens; LAVa compares with it on SnapKV's window, without code.
    """

    weight: Literal["after_pool", "before_pool"] = "after_pool"
    name: str = "vatp"

    def weigh(self, layer: LayerCache, recent: int) -> Weight | None:
        norms = layer.dense[1][:, : layer.lengths[0] - recent].float().norm(p=self.norm, dim=-1)
        return Weight(norms, self.weight == "after_pool")
