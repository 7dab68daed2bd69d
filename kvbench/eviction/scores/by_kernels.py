"""What kernels compute of scores while an answer is decoded, for heads of different lengths at once.

`row_term` is the sum that a score is for the row of a single new token. `Ragged` finishes the scores that are more than
a sum. Classes are compared exactly: a subclass may compute something else.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from kvbench.cache.kernels.choice import refining_kernels_of
from kvbench.cache.kernels.ragged_decode import Segments
from kvbench.cache.kernels.row_sums import Merge, RowTerm
from kvbench.cache.kv_cache import LayerCache
from kvbench.eviction.policy import Policy
from kvbench.eviction.scores.attn import Attention, AttentionMax, Cake, Lava, Vatp
from kvbench.eviction.scores.host import RESOLVED, Caote, FastCaote
from kvbench.eviction.scores.keys import Cur, KeyDiff, LagKV
from kvbench.eviction.scores.obcache import ExactRemoval, ExactZeroed, OBCacheJoint, OBCacheKey, OBCacheValue
from kvbench.eviction.scores.rkv import RKV
from kvbench.eviction.scores.score import Score

Slots = Float[Tensor, "segments #slots"]
Planes = Float[Tensor, "planes segments slots"]
"""With and without pooling, or one of them."""
SINGLE: dict[type[Score], RowTerm] = {
    AttentionMax: "attn",
    Cake: "attn",
    OBCacheValue: "obcache_value",
    OBCacheKey: "obcache_key",
    OBCacheJoint: "obcache_joint",
    ExactRemoval: "exact_removal",
    ExactZeroed: "exact_zeroed",
    Lava: "attn",
    Vatp: "attn",
    RKV: "logit",
}
BY_KEYS = (KeyDiff, Cur, LagKV)
"""Scores that read no rows and depend on the order or the number of pairs."""
RAGGED = (Caote, FastCaote, Lava, Vatp, RKV, *BY_KEYS)
"""Scores that `Ragged` finishes."""


def row_term(score: Score) -> RowTerm | None:
    """The sum that the raw score is made of for a single row; None: none of them."""
    if type(score) in (Caote, FastCaote):
        assert isinstance(score, Caote)
        return row_term(score.host)
    if type(score) not in (Attention, AttentionMax):
        return SINGLE.get(type(score))
    assert isinstance(score, Attention | AttentionMax)
    if type(score) is Attention and score.power == 2:
        return "attn_squares" if score.diagonal else "attn_squares_of_others"
    return "attn" if score.diagonal else "attn_of_others"


def merge_of(policy: Policy, score: Score) -> Merge:
    """How `row_term` is merged over the query heads of a KV head; not for `group=layer_mean`."""
    group = policy.group_of(score.group)
    assert group != "layer_mean"
    return "max" if type(score) is RKV and group != "none" else group


def finishes(score: Score) -> bool:
    """Whether `Ragged` computes the score of a single new token."""
    return type(score) in BY_KEYS or (type(score) in RAGGED and row_term(score) is not None)


@dataclass(frozen=True)
class Ragged:
    """Heads of different lengths after a single new token, and a score with `finishes`.

    layer: their pairs, with `segments`. recent: the newest protected tokens.
    """

    layer: LayerCache
    score: Score
    recent: int
    kernels: Any = field(default_factory=lambda: refining_kernels_of("triton"))

    @property
    def segments(self) -> Segments:
        """Where the pairs of each head are."""
        assert self.layer.segments is not None
        return self.layer.segments

    def raw(self, sums: Slots | None) -> Slots:
        """The raw score, merged over query heads, from the sums of its `row_term`."""
        if isinstance(self.score, KeyDiff):
            return self.kernels.key_diff(self.layer.keys, self.segments)
        if isinstance(self.score, Cur):
            states = (self.score.projected(part, self.layer.index) for part in (self.layer.keys, self.layer.values))
            return self.score.of_shares(*self.kernels.leverages(*states, self.segments, self.score.span))
        if isinstance(self.score, LagKV):
            settings = self.score.sink, self.score.lag, self.score.cross
            return self.kernels.lag_scores(self.layer.keys, self.layer.values, self.segments, *settings)
        assert sums is not None
        return sums.softmax(dim=1) if isinstance(self.score, RKV) else sums

    def before_pool(self, raw: Slots) -> Slots:
        """What is pooled, from the raw score."""
        weights, after = self._weights
        return raw if weights is None or after else raw * weights

    def final(self, pooled: Planes) -> Planes:
        """The final score, from the pooled one and others alike."""
        score, (weights, after) = self.score, self._weights
        if weights is not None and after:
            pooled = pooled * weights
        if isinstance(score, Caote):
            form = score.squared, isinstance(score, FastCaote), RESOLVED
            return self.kernels.caote(pooled, self.layer.values, self.segments, *form)
        if isinstance(score, RKV):
            return torch.sub(score.importance * pooled, self._repeats(score), alpha=1 - score.importance)
        return pooled

    @cached_property
    def _weights(self) -> tuple[Slots | None, bool]:
        """The factors of the score, or of its host, and whether they follow pooling."""
        weighed, recent = self.score, self.recent
        if isinstance(weighed, Caote):
            weighed, recent = weighed.host, 0
        if type(weighed) is Lava:
            last = 0 if weighed.over == "all" else recent
            return self.kernels.norms(self.layer.values, self.segments, weighed.norm, last), True
        if type(weighed) is Vatp:
            norms = self.kernels.norms(self.layer.values, self.segments, weighed.norm)
            return norms, weighed.weight == "after_pool"
        return None, True

    def _repeats(self, score: RKV) -> Slots:
        like = score.threshold, score.unlike == "first"
        return self.kernels.redundancy(self.layer.keys, self.segments, *like).softmax(dim=1)
