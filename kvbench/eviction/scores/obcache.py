"""OBCache: the loss in attention output when the value, the key, or both of a pair are pruned, by Optimal Brain Damage.

OBCache: Optimal Brain KV Cache Pruning for Efficient Long-Context LLM Inference, equations 4 to 6 (derived in
appendix B). Pruning sets a key to zero, which leaves the logit 0 in the softmax: a shift of all logits of a row changes
the scores of keys and pairs.
"""

from dataclasses import dataclass
from typing import ClassVar

from kvbench.cache.kv_cache import LayerCache, Window
from kvbench.cache.shapes import Scores
from kvbench.eviction.pooling import Group
from kvbench.eviction.scores.score import Reduce, Score, ScoreInputs
from kvbench.eviction.scores.window import Chunk, Columns, over_columns, resolved


@dataclass(frozen=True)
class OBCacheValue(Score):
    """|v_j|^2 sum_i A_ij^2, the sum over the observed rows."""

    name: str = "obcache_value"
    inputs: ClassVar[ScoreInputs] = ScoreInputs(window=True)
    group: ClassVar[Group] = "sum"
    head_by_head: ClassVar[bool] = True
    any_order: ClassVar[bool] = True

    def __call__(self, layer: LayerCache, rows: Window | None, reduce: Reduce) -> Scores:
        assert rows is not None
        return over_columns(layer, rows, _value, named="obcache_value")


@dataclass(frozen=True)
class OBCacheKey(OBCacheValue):
    """sum_i (A_ij Z_ij)^2 |v_j - o_i|^2 with Z the scaled logits, the sum over the observed rows."""

    name: str = "obcache_key"

    def __call__(self, layer: LayerCache, rows: Window | None, reduce: Reduce) -> Scores:
        assert rows is not None
        return over_columns(layer, resolved(layer, rows), _key, named="obcache_key")


@dataclass(frozen=True)
class OBCacheJoint(OBCacheValue):
    """value + key + 2 sum_i A_ij^2 Z_ij v_j.(v_j - o_i) = sum_i A_ij^2 |v_j + Z_ij (v_j - o_i)|^2."""

    name: str = "obcache_joint"

    def __call__(self, layer: LayerCache, rows: Window | None, reduce: Reduce) -> Scores:
        assert rows is not None
        return over_columns(layer, resolved(layer, rows), _joint, named="obcache_joint")


def _value(chunk: Chunk) -> Columns:
    return (chunk.weights.square() * chunk.value_norms).sum(dim=1)


def _key(chunk: Chunk) -> Columns:
    return ((chunk.weights * chunk.logits).square() * chunk.distances).sum(dim=1)


def _joint(chunk: Chunk) -> Columns:
    moved = chunk.value_norms + chunk.logits * (2 * chunk.projections + chunk.logits * chunk.distances)
    return (chunk.weights.square() * moved.clamp_min(0)).sum(dim=1)
