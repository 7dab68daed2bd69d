"""CriticalKV: half of the pairs by a host score, the others by that score times the norm of the projected value.

CriticalKV (Feng et al. 2025, https://arxiv.org/abs/2502.03805), as `CriticalKVPress` and `CriticalAdaKVPress` of its
code, which are those of kvpress: the norm bounds how far the output of the attention moves when the pair is evicted.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from kvbench.cache.kv_cache import LayerCache
from kvbench.cache.shapes import Ranked
from kvbench.eviction.pooling import Weight
from kvbench.eviction.ranking import SecondStage
from kvbench.eviction.scores.host import OverHost
from kvbench.eviction.scores.score import ScoreInputs
from kvbench.support.errors import UserError

TOKENS_AT_ONCE = 4096
"""Values that are projected at a time."""


@dataclass(frozen=True)
class CriticalKV(OverHost):
    """h_j for the first `first_stage` of the pairs that a head keeps, (h_j + epsilon) |W_o v_j|_1 for the others.

    h is the host score as the policy pools and reduces it, W_o the part of the output projection for a query head; the
    norm is the mean over the query heads that share the value. How many pairs a head keeps is decided by h alone.
    protected: whether the tokens that are always kept count among the first.
    """

    first_stage: float = 0.5
    epsilon: float = 1e-4
    protected: bool = True
    name: str = "criticalkv"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.first_stage <= 1:
            raise UserError(f"score.first_stage={self.first_stage}: a part of the pairs is from 0 to 1, e.g. 0.5")
        if not self.epsilon >= 0:
            raise UserError(f"score.epsilon={self.epsilon}: 0 or more is added to the scores, e.g. 1e-4")

    @property
    def inputs(self) -> ScoreInputs:  # type: ignore[override]
        return replace(self.host.inputs, projections=("output",))

    @property
    def whole(self) -> bool:  # type: ignore[override]
        return self.host.whole

    @property
    def by_head(self) -> bool:  # type: ignore[override]
        return self.host.by_head

    def weigh(self, layer: LayerCache, recent: int) -> Weight | None:
        return self.host.weigh(layer, recent)

    def refine(self, shaped: Ranked, layer: LayerCache) -> Ranked:
        return self.host.refine(shaped, layer)

    def second_stage(self, ranked: Ranked, layer: LayerCache, protected: int) -> SecondStage:
        norms = projected_norms(layer, ranked.shape[1], 1)
        norms = norms.view(ranked.shape[0], -1, ranked.shape[1]).mean(dim=1)
        return SecondStage((ranked + self.epsilon) * norms, self.first_stage, protected if self.protected else 0)


def projected_norms(layer: LayerCache, tokens: int, power: int) -> Float[Tensor, "heads tokens"]:
    """|W_o v_j| of the first `tokens` tokens for every query head: L1 or L2, in float32."""
    values = layer.dense[1][:, :tokens]
    matrices = layer.projections["output"].to(values.device).float().unflatten(1, (layer.query_heads, -1))
    group = layer.query_heads // len(values)

    def norms(head: int) -> Tensor:
        parts = values[head // group].split(TOKENS_AT_ONCE)
        return torch.cat([(part.float() @ matrices[:, head].mT).norm(p=power, dim=-1) for part in parts])

    return torch.stack([norms(head) for head in range(layer.query_heads)])
