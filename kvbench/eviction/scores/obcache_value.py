"""OBCache-Value: the loss in attention output when the value of a pair is pruned, by Optimal Brain Damage.

OBCache: Optimal Brain KV Cache Pruning for Efficient Long-Context LLM Inference, equation 4 (boxed 19).
"""

from dataclasses import dataclass
from typing import ClassVar

from kvbench.cache.kv_cache import LayerCache, Window
from kvbench.cache.shapes import Scores
from kvbench.eviction.pooling import Group
from kvbench.eviction.scores.score import Reduce, Score, ScoreInputs
from kvbench.eviction.scores.window import over_columns


@dataclass(frozen=True)
class OBCacheValue(Score):
    """|v_j|^2 sum_i A_ij^2, the sum over the observed rows."""

    name: str = "obcache_value"
    inputs: ClassVar[ScoreInputs] = ScoreInputs(window=True)
    group: ClassVar[Group] = "sum"

    def __call__(self, layer: LayerCache, rows: Window | None, reduce: Reduce) -> Scores:
        """Scores [heads, tokens] of a dense layer; `reduce` is ignored."""
        assert rows is not None
        return over_columns(
            layer, rows, lambda chunk: (chunk.weights.square() * chunk.value_norms).sum(dim=1), named="obcache_value"
        )
