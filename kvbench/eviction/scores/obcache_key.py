"""OBCache-Key: the loss in attention output when the key of a pair is pruned, by Optimal Brain Damage.

OBCache: Optimal Brain KV Cache Pruning for Efficient Long-Context LLM Inference, equation 5 (derived in appendix B.3).
Pruning sets the key to zero, which leaves the logit 0 in the softmax: a shift of all logits of a row changes the score.
"""

from dataclasses import dataclass
from typing import ClassVar

from kvbench.cache.kv_cache import LayerCache, Window
from kvbench.cache.shapes import Scores
from kvbench.eviction.pooling import Group
from kvbench.eviction.scores.score import Reduce, Score, ScoreInputs
from kvbench.eviction.scores.window import Chunk, Columns, over_columns, resolved


@dataclass(frozen=True)
class OBCacheKey(Score):
    """sum_i (A_ij Z_ij)^2 |v_j - o_i|^2 with Z the scaled logits, the sum over the observed rows."""

    name: str = "obcache_key"
    inputs: ClassVar[ScoreInputs] = ScoreInputs(window=True)
    group: ClassVar[Group] = "sum"

    def __call__(self, layer: LayerCache, rows: Window | None, reduce: Reduce) -> Scores:
        """Scores [heads, tokens] of a dense layer; `reduce` is ignored."""
        assert rows is not None
        return over_columns(layer, resolved(layer, rows), _key, named="obcache_key")


def _key(chunk: Chunk) -> Columns:
    return ((chunk.weights * chunk.logits).square() * chunk.distances).sum(dim=1)
