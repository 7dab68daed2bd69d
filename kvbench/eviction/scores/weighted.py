"""Scores that weigh the attention that a KV pair receives: FINCH by the place of a row, LAVa and VATP by values."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch

from kvbench.cache.kv_cache import LayerCache, ObservationWindow
from kvbench.cache.shapes import Scores
from kvbench.eviction.pooling import Group, Weight
from kvbench.eviction.scores.attn import received
from kvbench.eviction.scores.ragged import Planes, RaggedHeads, Slots
from kvbench.eviction.scores.score import RawTerm, Reduce, WindowScore
from kvbench.eviction.scores.window import Chunk, Columns, over_columns
from kvbench.support.annotations import Help


@dataclass(frozen=True)
class Finch(WindowScore):
    """mean over the observed rows i of n_i A_ij, n_i the number of tokens before row i; A_ij without `normalize`.

    FINCH (Corallo, Papotti 2024, https://arxiv.org/abs/2408.00167), as in `FinchPress` of kvpress; the window is the
    question (`policy.window=question`). A later row divides its attention among more tokens, so that without n_i it
    would count less.
    """

    normalize: Annotated[bool, Help("false: plain weights, as kvpress with normalize_scores=False")] = True
    name: str = "finch"
    row_term: ClassVar[RawTerm] = "attn"
    separate: ClassVar[bool] = True

    def __call__(self, layer: LayerCache, window: ObservationWindow | None, reduce: Reduce) -> Scores:
        assert window is not None
        if not self.normalize:
            return received(layer, window, "mean")
        return over_columns(layer, window, _normalized) / window.lse.shape[1]

    def raw_segments(self, heads: RaggedHeads, sums: Slots | None) -> Slots:
        assert sums is not None
        return sums * (heads.segments.lengths - 1)[:, None] if self.normalize else sums


def _normalized(chunk: Chunk) -> Columns:
    before = torch.arange(chunk.row, chunk.row + chunk.weights.shape[1], device=chunk.weights.device)
    return (chunk.weights * before[:, None]).sum(dim=1)


@dataclass(frozen=True)
class WeightedAttention(WindowScore):
    """Base class: attention weights A_ij merged over the observed rows, times a function of the values' norms.

    norm: L1 or L2. Query heads are merged by their maximum.
    """

    norm: Annotated[Literal[1, 2], Help("1 or 2")] = 1
    group: ClassVar[Group] = "max"

    def __call__(self, layer: LayerCache, window: ObservationWindow | None, reduce: Reduce) -> Scores:
        assert window is not None
        return received(layer, window, reduce)

    def norms(self, layer: LayerCache, recent: int) -> Scores:
        """|v_j| of all but the newest `recent` tokens, one row per KV head."""
        return layer.dense[1][:, : layer.lengths[0] - recent].float().norm(p=self.norm, dim=-1)


@dataclass(frozen=True)
class Lava(WeightedAttention):
    """A_ij merged and pooled, times the largest |v_k| of the KV head, so that scores compare across heads.

    LAVa (Shen et al. 2025, https://arxiv.org/abs/2509.09754), equation 5. over: `candidates`, the columns before the
    newest protected ones, as in its code, or `all`.
    """

    over: Annotated[
        Literal["candidates", "all"],
        Help("L1: LAVa's snapkv_utils.py leaves the window out of the maximum; all: eq. 5 of the paper"),
    ] = "candidates"
    name: str = "lava"
    row_term: ClassVar[RawTerm] = "attn"
    separate: ClassVar[bool] = True

    def weigh(self, layer: LayerCache, recent: int) -> Weight | None:
        norms = self.norms(layer, 0 if self.over == "all" else recent)
        return Weight(norms.amax(dim=1, keepdim=True)) if norms.shape[1] else None

    def refine_segments(self, heads: RaggedHeads, pooled: Planes, out: Planes) -> Planes:
        return heads.weighed(pooled, heads.values, self.norm, 0 if self.over == "all" else heads.recent, out)


@dataclass(frozen=True)
class Vatp(WeightedAttention):
    """A_ij merged, times |v_j|, right after pooling or before it.

    VATP (Guo, Kamigaito, Watanabe 2024, https://arxiv.org/abs/2406.12335). Its own code sums over every query and
    always keeps the first 20 tokens; LAVa compares with it on SnapKV's window, without code.
    """

    weight: Annotated[Literal["after_pool", "before_pool"], Help("V2, before_pool: weight before pooling")] = (
        "after_pool"
    )
    name: str = "vatp"
    row_term: ClassVar[RawTerm] = "attn"
    separate: ClassVar[bool] = True

    def weigh(self, layer: LayerCache, recent: int) -> Weight | None:
        return Weight(self.norms(layer, recent), self.weight == "after_pool")

    def weigh_segments(self, heads: RaggedHeads, raw: Slots) -> Slots:
        if self.weight == "after_pool":
            return raw
        return heads.weighed(raw[None], heads.values, self.norm, None, heads.empty()[None])[0]

    def refine_segments(self, heads: RaggedHeads, pooled: Planes, out: Planes) -> Planes:
        return heads.weighed(pooled, heads.values, self.norm, None, out) if self.weight == "after_pool" else pooled
