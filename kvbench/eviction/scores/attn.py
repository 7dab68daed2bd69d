"""Attention that a KV pair receives from the observed rows.

H2O (Zhang et al. 2023, https://arxiv.org/abs/2306.14048), SnapKV (Li et al. 2024, https://arxiv.org/abs/2404.14469)
and TOVA (Oren et al. 2024, https://arxiv.org/abs/2401.06104) all rank by it; OBCache writes it as its equation 8 with
p = 1.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from kvbench.cache.kv_cache import LayerCache, Window
from kvbench.cache.shapes import Scores
from kvbench.eviction.pooling import Group
from kvbench.eviction.scores.score import Reduce, Score, ScoreInputs
from kvbench.eviction.scores.window import Chunk, Weights, over_columns
from kvbench.support.errors import UserError


@dataclass(frozen=True)
class Attention(Score):
    """sum, mean or max over the observed rows i of the attention weight A_ij, to the power of `power`;
    `observed_attention` is the mean over the rows with i >= j, as `ObservedAttentionPress` of kvpress.

    diagonal: whether the weight that a row gives itself counts. Raises UserError for a power other than 1 and 2.
    """

    name: str = "attn"
    power: int = 1
    diagonal: bool = True
    inputs: ClassVar[ScoreInputs] = ScoreInputs(window=True)
    head_by_head: ClassVar[bool] = True
    any_order: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.power not in (1, 2):
            raise UserError(f"score.power={self.power}: allowed: 1, or 2 as Algorithm 1 of OBCache prints it")

    def __call__(self, layer: LayerCache, rows: Window | None, reduce: Reduce) -> Scores:
        assert rows is not None
        return received(layer, rows, reduce, self.power, self.diagonal)


@dataclass(frozen=True)
class AttentionMax(Score):
    """max over the observed rows i of the attention weight A_ij, with or without the weight that a row gives itself.

    H2O-max in the appendix of KVzip (Kim et al. 2025, https://arxiv.org/abs/2505.23416): over all queries of the prompt
    and all query heads of the group.
    """

    name: str = "attn_max"
    diagonal: bool = True
    inputs: ClassVar[ScoreInputs] = ScoreInputs(window=True)
    head_by_head: ClassVar[bool] = True
    any_order: ClassVar[bool] = True
    group: ClassVar[Group] = "max"

    def __call__(self, layer: LayerCache, rows: Window | None, reduce: Reduce) -> Scores:
        assert rows is not None
        return received(layer, rows, "max", diagonal=self.diagonal)


def received(layer: LayerCache, rows: Window, reduce: Reduce, power: int = 1, diagonal: bool = True) -> Scores:
    """Attention weights, to the power of `power`, that every column receives from `rows`: one row per query head.

    Without `diagonal` the weight that a row gives itself counts as 0.
    """

    def powered(weights: Tensor) -> Tensor:
        return weights if power == 1 else weights.pow(power)

    def counted(chunk: Chunk) -> Weights:
        return chunk.weights if diagonal else chunk.weights.masked_fill(chunk.diagonal, 0)

    if reduce == "max":
        largest = over_columns(
            layer, rows, lambda chunk: counted(chunk).amax(dim=1), torch.maximum, "attn_max", diagonal
        )
        return powered(largest)
    named = "attn" if power == 1 else "attn_squares"
    total = over_columns(layer, rows, lambda chunk: powered(counted(chunk)).sum(dim=1), torch.add, named, diagonal)
    if reduce == "observed_attention":
        seeing = torch.arange(total.shape[1], 0, -1, device=total.device).clamp_max(rows.lse.shape[1])
        return total / seeing
    return total / rows.lse.shape[1] if reduce == "mean" and rows.lse.shape[1] > 1 else total
