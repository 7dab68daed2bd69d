"""Attention a pair receives from the voting rows.

H2O (Zhang et al. 2023, https://arxiv.org/abs/2306.14048), SnapKV (Li et al. 2024, https://arxiv.org/abs/2404.14469)
and TOVA (Oren et al. 2024, https://arxiv.org/abs/2401.06104) all rank by it; OBCache writes it as its equation 8 with
p = 1.
"""

from dataclasses import dataclass
from typing import ClassVar

from kvbench.cache import LayerCache, Window
from kvbench.scores.columns import Chunk, Columns, over_columns
from kvbench.scores.score import Evidence, Reduce
from kvbench.shapes import Scores
from kvbench.shaping import Group


@dataclass(frozen=True)
class Attention:
    """sum, mean or max over the voting rows i of the attention weight A_ij."""

    name: str = "attn"
    evidence: ClassVar[Evidence] = Evidence(window=True)
    group: ClassVar[Group] = "mean"

    def __call__(self, layer: LayerCache, rows: Window | None, reduce: Reduce) -> Scores:
        """Scores [heads, tokens] of a dense layer, one chunk of columns at a time."""
        assert rows is not None
        return over_columns(layer, rows, lambda chunk: _merge(chunk, reduce))


def _merge(chunk: Chunk, reduce: Reduce) -> Columns:
    match reduce:
        case "sum":
            return chunk.weights.sum(dim=1)
        case "mean":
            return chunk.weights.mean(dim=1)
        case "max":
            return chunk.weights.amax(dim=1)
