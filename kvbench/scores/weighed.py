"""Attention that is weighed by the norms of values: what LAVa and VATP derive from."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from kvbench.cache import LayerCache, Window
from kvbench.scores.attn import received
from kvbench.scores.score import Evidence, Reduce, Score
from kvbench.shapes import Scores
from kvbench.shaping import Group

Norm = Literal[1, 2]


@dataclass(frozen=True)
class Weighed(Score):
    """The rows' attention weights A_ij, merged; `weigh` says what they are multiplied by. norm: of values, L1 or L2."""

    norm: Norm = 1
    evidence: ClassVar[Evidence] = Evidence(window=True)
    group: ClassVar[Group] = "max"

    def __call__(self, layer: LayerCache, rows: Window | None, reduce: Reduce) -> Scores:
        """Scores [heads, tokens] of a dense layer, not yet weighed."""
        assert rows is not None
        return received(layer, rows, reduce)
