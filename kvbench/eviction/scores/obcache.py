"""The loss in attention output when a pair is removed: OBCache's approximations, and the exact values.

OBCache: Optimal Brain KV Cache Pruning for Efficient Long-Context LLM Inference, equations 4 to 6 (derived in
appendix B), scores pairs by Optimal Brain Damage. Pruning sets a key to zero, which leaves the logit 0 in the softmax:
a shift of all logits of a row changes the scores of keys and pairs.

What OBCache (equation 1) calls infeasible to compute has a closed form. With a the weight of the pair, v its value, o
the output and E = exp(-lse) of the row, the output without the pair differs from o by a / (1 - a) (v - o). The literal
reading of equation 1 leaves the pair in the softmax with the logit 0: the output becomes (o - a v) / (1 - a + E).

If a row gives a pair nearly all its weight, so that the denominator is below what float32 resolves, the largest
possible change is taken instead: see `Furthest` in `kvbench.eviction.scores.window`.
"""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch

from kvbench.cache.kernels.column_sums import RESOLVED
from kvbench.cache.kv_cache import LayerCache, ObservationWindow
from kvbench.cache.shapes import Scores
from kvbench.eviction.pooling import Group
from kvbench.eviction.scores.score import RawTerm, Reduce, WindowScore
from kvbench.eviction.scores.window import Chunk, Columns, Furthest, over_columns, resolved


class OutputLoss(WindowScore):
    """Base class: a sum over the observed rows, added up over the query heads of a KV head."""

    group: ClassVar[Group] = "sum"

    def over_rows(self, reduce: Reduce) -> Reduce:
        return "sum"


@dataclass(frozen=True)
class OBCacheValue(OutputLoss):
    """|v_j|^2 sum_i A_ij^2, the sum over the observed rows."""

    name: str = "obcache_value"
    row_term: ClassVar[RawTerm] = "obcache_value"
    separate: ClassVar[bool] = True

    def __call__(self, layer: LayerCache, window: ObservationWindow | None, reduce: Reduce) -> Scores:
        assert window is not None
        return over_columns(layer, window, _value, named="obcache_value")


@dataclass(frozen=True)
class OBCacheKey(OutputLoss):
    """sum_i (A_ij Z_ij)^2 |v_j - o_i|^2 with Z the scaled logits, the sum over the observed rows."""

    name: str = "obcache_key"
    row_term: ClassVar[RawTerm] = "obcache_key"
    separate: ClassVar[bool] = True

    def __call__(self, layer: LayerCache, window: ObservationWindow | None, reduce: Reduce) -> Scores:
        assert window is not None
        return over_columns(layer, resolved(layer, window), _key, named="obcache_key")


@dataclass(frozen=True)
class OBCacheJoint(OutputLoss):
    """value + key + 2 sum_i A_ij^2 Z_ij v_j.(v_j - o_i) = sum_i A_ij^2 |v_j + Z_ij (v_j - o_i)|^2."""

    name: str = "obcache_joint"
    row_term: ClassVar[RawTerm] = "obcache_joint"
    separate: ClassVar[bool] = True

    def __call__(self, layer: LayerCache, window: ObservationWindow | None, reduce: Reduce) -> Scores:
        assert window is not None
        return over_columns(layer, resolved(layer, window), _joint, named="obcache_joint")


def _value(chunk: Chunk) -> Columns:
    return (chunk.weights.square() * chunk.value_norms).sum(dim=1)


def _key(chunk: Chunk) -> Columns:
    return ((chunk.weights * chunk.logits).square() * chunk.distances).sum(dim=1)


def _joint(chunk: Chunk) -> Columns:
    moved = chunk.value_norms + chunk.logits * (2 * chunk.projections + chunk.logits * chunk.distances)
    return (chunk.weights.square() * moved.clamp_min(0)).sum(dim=1)


@dataclass(frozen=True)
class ExactRemoval(OutputLoss):
    """sum_i (A_ij / (1 - A_ij))^2 |v_j - o_i|^2, the sum over the observed rows."""

    name: str = "exact_removal"
    row_term: ClassVar[RawTerm] = "exact_removal"
    separate: ClassVar[bool] = True

    def __call__(self, layer: LayerCache, window: ObservationWindow | None, reduce: Reduce) -> Scores:
        assert window is not None
        term = partial(_removed, bound=Furthest(layer))
        return over_columns(layer, resolved(layer, window), term, named="exact_removal")


def _removed(chunk: Chunk, bound: Furthest) -> Columns:
    rest = chunk.rest
    odds = chunk.weights / rest.clamp_min(RESOLVED)
    return torch.where(rest < RESOLVED, bound(chunk), odds.square() * chunk.distances).sum(dim=1)


@dataclass(frozen=True)
class ExactZeroed(OutputLoss):
    """sum_i |o'_i - o_i|^2 with o'_i = (o_i - A_ij v_j) / (1 - A_ij + exp(-lse_i)), over rows that attend to j.

    The score changes if all logits of a row are shifted, because the logit 0 then means another weight.
    """

    name: str = "exact_zeroed"
    row_term: ClassVar[RawTerm] = "exact_zeroed"
    separate: ClassVar[bool] = True

    def __call__(self, layer: LayerCache, window: ObservationWindow | None, reduce: Reduce) -> Scores:
        assert window is not None
        term = partial(_zeroed, bound=Furthest(layer))
        return over_columns(layer, resolved(layer, window), term, named="exact_zeroed")


def _zeroed(chunk: Chunk, bound: Furthest) -> Columns:
    # Numerator and denominator times p = 1 / (1 + E): no exponential can overflow. With q = 1 - p,
    # o' - o = -(a p (v - o) + q o) / (p (1 - a) + q).
    p, q = chunk.lse.sigmoid(), (-chunk.lse).sigmoid()
    moved, remaining = p * chunk.weights, p * chunk.rest + q
    o2 = chunk.outputs.square().sum(-1, keepdim=True)
    squares = moved.square() * chunk.distances + 2 * moved * q * chunk.leanings + q.square() * o2
    errors = squares.clamp_min(0) / remaining.clamp_min(RESOLVED).square()
    return torch.where(remaining < RESOLVED, bound(chunk), errors).masked_fill(chunk.hidden, 0).sum(dim=1)
