"""What kernels compute of scores while an answer is decoded, for heads of different lengths at once.

`row_term` is the sum that a score is for the row of a single new token. `Ragged` finishes the scores that are more than
a sum. Classes are compared exactly: a subclass may compute something else.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kvbench.cache.kernels.choice import refining_kernels_of
from kvbench.cache.kernels.ragged_decode import Segments
from kvbench.cache.kernels.row_sums import Merge, RowTerm
from kvbench.cache.kv_cache import LayerCache
from kvbench.eviction.policy import Policy
from kvbench.eviction.scores.attn import Attention, AttentionMax, Cake, Finch, Lava, Vatp
from kvbench.eviction.scores.host import RESOLVED, Caote, FastCaote
from kvbench.eviction.scores.keys import Cur, KeyDiff, KeyNorm, LagKV
from kvbench.eviction.scores.obcache import ExactRemoval, ExactZeroed, OBCacheJoint, OBCacheKey, OBCacheValue
from kvbench.eviction.scores.rkv import RKV
from kvbench.eviction.scores.score import Score
from kvbench.eviction.scores.triattention import HeadQueries, TriAttention

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
    Finch: "attn",
    Lava: "attn",
    Vatp: "attn",
    RKV: "logit",
}
BY_KEYS = (KeyNorm, KeyDiff, Cur, LagKV, TriAttention)
"""Scores that read keys, some of them values too, but no rows."""
RAGGED = (Caote, FastCaote, Finch, Lava, Vatp, RKV, *BY_KEYS)
"""Scores that `Ragged` finishes."""
CHANGED = (Finch, RKV)
"""Scores whose raw score is another number than the sum of their `row_term`."""


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
    """How `row_term` is merged over the query heads of a KV head; with `group=layer_mean` a mean over heads follows."""
    group = policy.group_of(score.group)
    if type(score) is RKV and group != "none":
        return "max"
    return "mean" if group == "layer_mean" else group


def finishes(score: Score) -> bool:
    """Whether `Ragged` computes the score of a single new token."""
    return type(score) in BY_KEYS or (type(score) in RAGGED and row_term(score) is not None)


@dataclass(frozen=True)
class Ragged:
    """Heads of different lengths after a single new token, and a score with `finishes`.

    layer: their pairs, with `segments`. policy: of the cells. newest: the position of the newest token, of all
    heads or of each.
    """

    layer: LayerCache
    score: Score
    policy: Policy
    newest: Int[Tensor, "_"]
    kernels: Any = field(default_factory=lambda: refining_kernels_of("triton"))

    @property
    def segments(self) -> Segments:
        """Where the pairs of each head are."""
        assert self.layer.segments is not None
        return self.layer.segments

    def raw(self, sums: Slots | None, queries: HeadQueries | None) -> Slots:
        """The raw score, merged over query heads, from the sums of its `row_term`, or the `queries` of TriAttention."""
        if isinstance(self.score, KeyNorm):
            out = torch.empty(1, self.layer.cache_heads, self.segments.longest, device=self.layer.keys.device)
            return self.kernels.weighed(None, self.layer.keys, self.segments, 2, None, out)[0]
        if isinstance(self.score, KeyDiff):
            return self.kernels.key_diff(self.layer.keys, self.segments)
        if isinstance(self.score, Cur):
            states = (self.score.projected(part, self.layer.index) for part in (self.layer.keys, self.layer.values))
            return self.kernels.cur(*states, self.segments, self.score.leverage, self.score.span, self.score.sink)
        if isinstance(self.score, LagKV):
            settings = self.score.sink, self.score.lag, self.score.cross
            return self.kernels.lag_scores(self.layer.keys, self.layer.values, self.segments, *settings)
        if queries is not None:
            settings = queries.interleaved, merge_of(self.policy, self.score)
            parts = queries.mean, queries.spread, queries.turn(self.newest + 1)
            return self.kernels.triattention(self.layer.keys, self.segments, *parts, *settings)
        assert sums is not None
        if isinstance(self.score, Finch) and self.score.normalize:
            return sums * (self.segments.lengths - 1)[:, None]
        return sums.softmax(dim=1) if isinstance(self.score, RKV) else sums

    def before_pool(self, raw: Slots) -> Slots:
        """What is pooled, from the raw score."""
        return self._weighed(raw[None], torch.empty_like(raw)[None])[0] if self._weighs == "before_pool" else raw

    def final(self, pooled: Planes, out: Planes) -> Planes:
        """The final score, from the pooled one and others alike, in `out`, which may be these."""
        score, arrays = self.score, (self.layer.values, self.segments)
        if self._weighs == "after_pool":
            pooled = self._weighed(pooled, out)
        if isinstance(score, Caote):
            return self.kernels.caote(pooled, *arrays, score.squared, isinstance(score, FastCaote), RESOLVED, out)
        if isinstance(score, RKV):
            settings = score.threshold, score.unlike == "first", score.importance
            return self.kernels.rkv(pooled, self.layer.keys, self.segments, *settings, out)
        return pooled

    @property
    def _weighing(self) -> Score:
        """The score that may have factors: the host of CAOTE."""
        return self.score.host if isinstance(self.score, Caote) else self.score

    @property
    def _weighs(self) -> Literal["before_pool", "after_pool"] | None:
        """When scores are multiplied by norms."""
        score = self._weighing
        if type(score) is Vatp:
            return score.weight
        return "after_pool" if type(score) is Lava else None

    def _weighed(self, scores: Planes, out: Planes) -> Planes:
        """Scores times norms of values."""
        score, largest = self._weighing, None
        assert isinstance(score, Lava | Vatp)
        if isinstance(score, Lava):
            largest = 0 if score.over == "all" or score is not self.score else self.policy.last
        return self.kernels.weighed(scores, self.layer.values, self.segments, score.norm, largest, out)
