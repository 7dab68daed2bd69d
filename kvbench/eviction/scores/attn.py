"""Scores made of the attention that a KV pair receives from the observed rows.

H2O (Zhang et al. 2023, https://arxiv.org/abs/2306.14048), SnapKV (Li et al. 2024, https://arxiv.org/abs/2404.14469)
and TOVA (Oren et al. 2024, https://arxiv.org/abs/2401.06104) all rank by it; OBCache writes it as its equation 8 with
p = 1. CAKE adds its variance; `scores/weighted.py` has scores that weigh it.
"""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from kvbench.cache.kv_cache import LayerCache, ObservationWindow
from kvbench.cache.shapes import Scores
from kvbench.eviction.pooling import Group
from kvbench.eviction.scores.score import RawTerm, Reduce, WindowScore
from kvbench.eviction.scores.window import Chunk, Columns, moments, over_columns
from kvbench.support.annotations import Help
from kvbench.support.errors import UserError


def received(
    layer: LayerCache, window: ObservationWindow, reduce: Reduce, power: int = 1, diagonal: bool = True
) -> Scores:
    """Attention weights, to the power of `power`, that every column receives from a window: one row per query head.

    Without `diagonal` the weight that a row gives itself counts as 0.
    """
    if reduce == "max":
        largest = partial(_largest, diagonal=diagonal)
        merged = over_columns(layer, window, largest, torch.maximum, "attn_max", diagonal)
        return merged if power == 1 else merged.pow(power)
    total = partial(_total, power=power, diagonal=diagonal)
    merged = over_columns(layer, window, total, named="attn" if power == 1 else "attn_squares", diagonal=diagonal)
    if reduce == "observed_attention":
        attending = torch.arange(merged.shape[1], 0, -1, device=merged.device).clamp_max(window.lse.shape[1])
        return merged / attending
    return merged / window.lse.shape[1] if reduce == "mean" and window.lse.shape[1] > 1 else merged


def _largest(chunk: Chunk, diagonal: bool) -> Columns:
    return _weights(chunk, diagonal).amax(dim=1)


def _total(chunk: Chunk, power: int, diagonal: bool) -> Columns:
    weights = _weights(chunk, diagonal)
    return (weights if power == 1 else weights.pow(power)).sum(dim=1)


def _weights(chunk: Chunk, diagonal: bool) -> Float[Tensor, "heads queries columns"]:
    return chunk.weights if diagonal else chunk.weights.masked_fill(chunk.diagonal, 0)


@dataclass(frozen=True)
class Attention(WindowScore):
    """sum, mean or max over the observed rows i of the attention weight A_ij, to the power of `power`;
    `observed_attention` is the mean over the rows with i >= j, as `ObservedAttentionPress` of kvpress.

    diagonal: whether the weight that a row gives itself counts. Raises UserError for a power other than 1 and 2.
    """

    name: str = "attn"
    separate: ClassVar[bool] = True
    power: Annotated[int, Help("O2: as in the methods and OBCache's code; 2: as in OBCache's Algorithm 1")] = 1
    diagonal: Annotated[
        bool,
        Help("L6: the weight of a row on its own key counts, as in H2O's modify_llama.py; false: as in LAVa's eq. 18"),
    ] = True

    def __post_init__(self) -> None:
        if self.power not in (1, 2):
            raise UserError(f"score.power={self.power}: allowed: 1, or 2 as Algorithm 1 of OBCache prints it")

    @property
    def row_term(self) -> RawTerm:  # type: ignore[override]
        if self.power == 2:
            return "attn_squares" if self.diagonal else "attn_squares_of_others"
        return "attn" if self.diagonal else "attn_of_others"

    def over_rows(self, reduce: Reduce) -> Reduce | None:
        return reduce if reduce in ("sum", "mean") or (reduce == "max" and self.power == 1) else None

    def __call__(self, layer: LayerCache, window: ObservationWindow | None, reduce: Reduce) -> Scores:
        assert window is not None
        return received(layer, window, reduce, self.power, self.diagonal)


@dataclass(frozen=True)
class AttentionMax(WindowScore):
    """max over the observed rows i of the attention weight A_ij, with or without the weight that a row gives itself.

    H2O-max in the appendix of KVzip (Kim et al. 2025, https://arxiv.org/abs/2505.23416): over all queries of the prompt
    and all query heads of the group.
    """

    name: str = "attn_max"
    diagonal: Annotated[
        bool,
        Help("the weight of a row on its own key counts, so that early tokens score near 1; KVzip does not specify it"),
    ] = True
    group: ClassVar[Group] = "max"
    separate: ClassVar[bool] = True

    @property
    def row_term(self) -> RawTerm:  # type: ignore[override]
        return "attn" if self.diagonal else "attn_of_others"

    def over_rows(self, reduce: Reduce) -> Reduce:
        return "max"

    def __call__(self, layer: LayerCache, window: ObservationWindow | None, reduce: Reduce) -> Scores:
        assert window is not None
        return received(layer, window, "max", diagonal=self.diagonal)


@dataclass(frozen=True)
class Cake(WindowScore):
    """mean_i A_ij + gamma var_i A_ij over the observed rows i, the variance unbiased.

    CAKE (Qin et al. 2025, https://arxiv.org/abs/2503.12491), as in its code (cake/model/modify_llama.py). A window of
    one row is refused. If only one row was read since the last eviction, as in a step of decoding, the score is its
    attention alone, as in CAKE's code.
    """

    gamma: Annotated[int | float, Help("L5: factor of the variance over the window, as in CAKE's code")] = 200.0
    name: str = "cake"
    least_rows: ClassVar[int] = 2
    row_term: ClassVar[RawTerm] = "attn"
    separate: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.gamma >= 0:
            raise UserError(f"score.gamma={self.gamma}: allowed: 0 or more, the weight of the variance, e.g. 200")

    def __call__(self, layer: LayerCache, window: ObservationWindow | None, reduce: Reduce) -> Scores:
        assert window is not None
        if window.lse.shape[1] == 1:
            return received(layer, window, "mean")
        mean, variance = moments(layer, window)
        return mean + self.gamma * variance
