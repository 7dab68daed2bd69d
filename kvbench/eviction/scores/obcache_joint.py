"""OBCache-Joint: the loss in attention output when a whole pair is pruned, by Optimal Brain Damage.

OBCache: Optimal Brain KV Cache Pruning for Efficient Long-Context LLM Inference, equation 6.
"""

from dataclasses import dataclass
from typing import ClassVar

from kvbench.cache.kv_cache import LayerCache, Window
from kvbench.cache.shapes import Scores
from kvbench.eviction.pooling import Group
from kvbench.eviction.scores.score import Reduce, Score, ScoreInputs
from kvbench.eviction.scores.window import Chunk, Columns, over_columns, resolved


@dataclass(frozen=True)
class OBCacheJoint(Score):
    """value + key + 2 sum_i A_ij^2 Z_ij v_j.(v_j - o_i) = sum_i A_ij^2 |v_j + Z_ij (v_j - o_i)|^2."""

    name: str = "obcache_joint"
    inputs: ClassVar[ScoreInputs] = ScoreInputs(window=True)
    group: ClassVar[Group] = "sum"

    def __call__(self, layer: LayerCache, rows: Window | None, reduce: Reduce) -> Scores:
        """Scores [heads, tokens] of a dense layer; `reduce` is ignored."""
        assert rows is not None
        return over_columns(layer, resolved(layer, rows), _joint, named="obcache_joint")


def _joint(chunk: Chunk) -> Columns:
    moved = chunk.value_norms + chunk.logits * (2 * chunk.projections + chunk.logits * chunk.distances)
    return (chunk.weights.square() * moved.clamp_min(0)).sum(dim=1)
