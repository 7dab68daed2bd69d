"""One query of a layer as it meets the pairs that eviction may take, in float64 and with nothing approximated.

Everything that a probe calls exact follows from the weights a of the query over the columns, their values v and its
output o = sum_j a_j v_j. A learned sink takes its share of the softmax and is never evicted: it has no column.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kvbench.cache.attention import Rule, capped
from kvbench.cache.kv_cache import LayerCache
from kvbench.cache.shapes import Kept
from kvbench.models.decode.next_step import Step

SATURATED = 1e-12
"""The smallest 1 - a that is told from 0."""

COLUMNS = 1024
"""Columns whose values meet the outputs at a time."""

Values = Float[Tensor, "kv_heads columns head_dim"]


@dataclass(frozen=True)
class Query:
    """A query over the `evictable` first columns of a layer, and over columns behind them that stay whatever is cut.

    The axis `columns` is all that it sees, `tokens` what can be evicted of that.
    """

    query: Float[Tensor, "heads head_dim"]
    keys: Values
    values: Values
    rule: Rule
    evictable: int

    @property
    def group(self) -> int:
        """Query heads that read a KV head."""
        return self.query.shape[0] // self.keys.shape[0]

    @cached_property
    def wide_values(self) -> Float[Tensor, "kv_heads columns head_dim"]:
        """The values in float64."""
        return self.values.double()

    @cached_property
    def logits(self) -> Float[Tensor, "heads columns"]:
        """q.k * scaling, capped where the model caps it."""
        grouped = (self.query.double() * self.rule.scaling).view(self.keys.shape[0], self.group, -1)
        logits = (grouped @ self.keys.double().mT).view(self.query.shape[0], -1)
        return capped(logits, self.rule.softcap)

    @cached_property
    def lse(self) -> Float[Tensor, "heads 1"]:
        """Log-sum-exp of the logits, a sink's among them."""
        columns = self.logits
        if self.rule.sinks is not None:
            columns = torch.cat((columns, self.rule.sinks.double()[:, None]), dim=1)
        return columns.logsumexp(dim=1, keepdim=True)

    @cached_property
    def weights(self) -> Float[Tensor, "heads columns"]:
        """a, the attention weights."""
        return (self.logits - self.lse).exp()

    @cached_property
    def outputs(self) -> Float[Tensor, "heads head_dim"]:
        """o, the outputs of the heads."""
        return self.mixed(self.weights)

    @cached_property
    def odds(self) -> Float[Tensor, "heads tokens"]:
        """a / (1 - a) of the evictable columns, 0 where 1 - a is not told from 0 (`saturated`)."""
        rest = -torch.expm1((self.logits - self.lse)[:, : self.evictable])
        return torch.where(rest < SATURATED, 0, self.weights[:, : self.evictable] / rest.clamp_min(SATURATED))

    @cached_property
    def saturated(self) -> Bool[Tensor, "heads tokens"]:
        """Evictable columns that have all the weight of a head."""
        return -torch.expm1((self.logits - self.lse)[:, : self.evictable]) < SATURATED

    def mixed(self, weights: Float[Tensor, "heads columns"]) -> Float[Tensor, "heads head_dim"]:
        """sum_j weights_j v_j of each head."""
        grouped = weights.view(self.keys.shape[0], self.group, -1)
        return (grouped @ self.wide_values).view(self.query.shape[0], -1)

    def moves(self) -> Iterator[tuple[slice, Float[Tensor, "heads columns head_dim"]]]:
        """How the output of each head moves when one evictable pair is gone: a / (1 - a) (o - v), chunk by chunk."""
        for start in range(0, self.evictable, COLUMNS):
            columns = slice(start, min(start + COLUMNS, self.evictable))
            values = self.wide_values[:, columns].repeat_interleave(self.group, dim=0)
            yield columns, self.odds[:, columns, None] * (self.outputs[:, None] - values)

    def without(self, kept: Kept) -> Float[Tensor, "heads head_dim"]:
        """The outputs when only the marked evictable pairs stay, by stored head; 0 for a head that is left nothing."""
        stay = self.staying(kept)
        logits = self.logits.masked_fill(~stay, -torch.inf)
        if self.rule.sinks is not None:
            logits = torch.cat((logits, self.rule.sinks.double()[:, None]), dim=1)
        weights = logits.softmax(dim=1)[:, : stay.shape[1]].nan_to_num(0.0)
        return self.mixed(weights)

    def staying(self, kept: Kept) -> Bool[Tensor, "heads columns"]:
        """True for every column that a query head still sees."""
        heads = kept.to(self.query.device).repeat_interleave(self.query.shape[0] // kept.shape[0], dim=0)
        behind = heads.new_ones(heads.shape[0], self.keys.shape[1] - self.evictable)
        return torch.cat((heads, behind), dim=1)


def at_prompt(layer: LayerCache, step: Step) -> Query:
    """The last query of what was read: its own pair can be evicted like any other."""
    keys, values = layer.dense
    return Query(layer.voting(1).queries[:, -1], keys, values, step.rule, keys.shape[1])


def at_decode(layer: LayerCache, step: Step) -> Query:
    """The query of the first decoded token, which sees what was read, a question behind it, and itself."""
    keys, values = layer.dense
    every = torch.cat((keys, step.keys), dim=1), torch.cat((values, step.values), dim=1)
    return Query(step.query[:, 0], *every, step.rule, keys.shape[1])
