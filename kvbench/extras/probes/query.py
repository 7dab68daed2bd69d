"""One query of a layer and the KV pairs that it attends to, in float64 and without approximation.

Everything that a probe calls exact follows from the attention weights a of the query over the columns, the values v of
the columns and the output o = sum_j a_j v_j. A learned sink takes its share of the softmax and is never evicted: it has
no column.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kvbench.cache.attention import AttentionParams, capped
from kvbench.cache.shapes import Kept, Ranked

SATURATED = 1e-12
"""1 - a counts as 0 below this."""
COLUMNS = 1024
"""Columns whose values are handled at a time."""
Values = Float[Tensor, "kv_heads columns head_dim"]
Output = Literal["attention", "layer"]
"""The output whose change is measured: of the query heads that read a pair, or of the layer."""


@dataclass(frozen=True)
class Query:
    """A query over the first `evictable` columns of a layer, followed by columns that are always kept.

    The axis `columns` is everything that the query attends to, `tokens` the evictable part of it.
    """

    query: Float[Tensor, "heads head_dim"]
    keys: Values
    values: Values
    rule: AttentionParams
    evictable: int

    @property
    def group(self) -> int:
        """Query heads per KV head."""
        return self.query.shape[0] // self.keys.shape[0]

    @cached_property
    def wide_values(self) -> Values:
        return self.values.double()

    @cached_property
    def logits(self) -> Float[Tensor, "heads columns"]:
        """q.k * scaling, capped if the model caps it."""
        grouped = (self.query.double() * self.rule.scaling).view(self.keys.shape[0], self.group, -1)
        logits = (grouped @ self.keys.double().mT).view(self.query.shape[0], -1)
        return capped(logits, self.rule.softcap)

    @cached_property
    def lse(self) -> Float[Tensor, "heads 1"]:
        """Log-sum-exp of the logits, including a sink's."""
        return self._with_sink(self.logits).logsumexp(dim=1, keepdim=True)

    @cached_property
    def weights(self) -> Float[Tensor, "heads columns"]:
        """a, the attention weights."""
        return (self.logits - self.lse).exp()

    @cached_property
    def outputs(self) -> Float[Tensor, "heads head_dim"]:
        """o, the outputs of the heads."""
        return self.mixed(self.weights)

    @cached_property
    def rest(self) -> Float[Tensor, "heads tokens"]:
        """1 - a of the evictable columns."""
        return -torch.expm1((self.logits - self.lse)[:, : self.evictable])

    @cached_property
    def saturated(self) -> Bool[Tensor, "heads tokens"]:
        """Evictable columns that have all the weight of a head."""
        return self.rest < SATURATED

    @cached_property
    def odds(self) -> Float[Tensor, "heads tokens"]:
        """a / (1 - a) of the evictable columns, 0 for `saturated` ones."""
        odds = self.weights[:, : self.evictable] / self.rest.clamp_min(SATURATED)
        return torch.where(self.saturated, 0, odds)

    def mixed(self, weights: Float[Tensor, "heads columns"]) -> Float[Tensor, "heads head_dim"]:
        """sum_j weights_j v_j of each head."""
        grouped = weights.view(self.keys.shape[0], self.group, -1)
        return (grouped @ self.wide_values).view(self.query.shape[0], -1)

    def moves(self) -> Iterator[tuple[slice, Float[Tensor, "heads columns head_dim"]]]:
        """Yield the change of each head's output when one evictable pair is removed: a / (1 - a) (o - v), chunk by
        chunk.
        """
        for start in range(0, self.evictable, COLUMNS):
            columns = slice(start, min(start + COLUMNS, self.evictable))
            values = self.wide_values[:, columns].repeat_interleave(self.group, dim=0)
            yield columns, self.odds[:, columns, None] * (self.outputs[:, None] - values)

    def without(self, kept: Kept) -> Float[Tensor, "heads head_dim"]:
        """Return the outputs if only the marked evictable pairs are kept, by cache head; 0 for a head that keeps
        nothing.
        """
        staying = self.staying(kept)
        logits = self._with_sink(self.logits.masked_fill(~staying, -torch.inf))
        return self.mixed(logits.softmax(dim=1)[:, : staying.shape[1]].nan_to_num(0.0))

    def staying(self, kept: Kept) -> Bool[Tensor, "heads columns"]:
        """Return True for every column that a query head still attends to."""
        heads = kept.to(self.query.device).repeat_interleave(self.query.shape[0] // kept.shape[0], dim=0)
        behind = heads.new_ones(heads.shape[0], self.keys.shape[1] - self.evictable)
        return torch.cat((heads, behind), dim=1)

    def _with_sink(self, logits: Float[Tensor, "heads columns"]) -> Float[Tensor, "heads _"]:
        sinks = self.rule.sinks
        return logits if sinks is None else torch.cat((logits, sinks.double()[:, None]), dim=1)


def removal_errors(query: Query, cache_heads: int, projection: Float[Tensor, "hidden width"] | None = None) -> Ranked:
    """Return the true eviction error: the squared change of an output if one pair is removed and the others share its
    weight.

    The oracle of OBCache (Gu et al.), Figure 2 and section 3.5: the output moves by a / (1 - a) (o - v). Returns
    squared errors [cache heads, evictable pairs] in float64.

    All query heads that read a cache head lose its pair. Without a projection the error is of their outputs,
    sum_h |o'_h - o_h|^2; with the projection W of the layer it is the layer's, |W (o' - o)|^2. If a pair has all
    the weight of a head nothing is left to compare with: no output can move further than twice the largest value, so
    the square of that (times the square of |W|) is taken, or the largest other error if that is more.
    """
    heads, head_dim = query.outputs.shape
    readers = heads // cache_heads
    errors = query.weights.new_zeros(cache_heads, query.evictable)
    matrix = None if projection is None else projection.double().to(errors.device)
    for columns, moved in query.moves():
        if matrix is None:
            parts = moved.square().sum(dim=2).view(cache_heads, readers, -1).sum(dim=1)
        else:
            together = moved.view(cache_heads, readers, -1, head_dim).transpose(1, 2).flatten(2)
            parts = (together @ matrix.T.view(cache_heads, readers * head_dim, -1)).square().sum(dim=2)
        errors[:, columns] = parts
    lost = query.saturated.view(cache_heads, readers, -1).any(dim=1)
    if lost.any():
        size = 1.0 if matrix is None else matrix.norm()
        errors[lost] = (2 * size * query.wide_values.norm(dim=2).amax()).square().maximum(errors.amax())
    return errors
