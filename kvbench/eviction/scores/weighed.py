"""Attention that is weighed by the norms of values: what LAVa and VATP derive from."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from kvbench.cache.kv_cache import LayerCache, Window
from kvbench.cache.shapes import Scores
from kvbench.eviction.pooling import Group
from kvbench.eviction.scores.attn import received
from kvbench.eviction.scores.score import Reduce, Score, ScoreInputs

Norm = Literal[1, 2]


@dataclass(frozen=True)
class Weighed(Score):
    """The rows' attention weights A_ij, merged; `weigh` says what they are multiplied by. norm: of values, L1 or L2."""

    norm: Norm = 1
    inputs: ClassVar[ScoreInputs] = ScoreInputs(window=True)
    group: ClassVar[Group] = "max"

    def __call__(self, layer: LayerCache, rows: Window | None, reduce: Reduce) -> Scores:
        """Scores [heads, tokens] of a dense layer, not yet weighed."""
        assert rows is not None
        return received(layer, rows, reduce)
