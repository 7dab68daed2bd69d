"""Rankings: the candidates of each layer, their scores, and one order among them.

The order is the same everywhere: higher score, then higher unpooled score, then lower layer, head and position. Max
pooling makes plateaus of equal scores, where the kept set would otherwise depend on the sorting algorithm.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from kvbench.cache.shapes import Ranked

Flat = Int[Tensor, "pairs"]

JOINED = 8
"""Stacks that are decided about at once. A score holds the keys of one in float32, hundreds of bytes for a candidate;
sorts and masks hold 40.
"""


@dataclass(frozen=True)
class SecondStage:
    """Another order of the candidates (CriticalKV): a head keeps `part` of its pairs by the scores of the ranking, and
    the rest by these. `protected` pairs count as kept by the former.
    """

    scores: Ranked
    part: float
    protected: int = 0


@dataclass(frozen=True)
class Ranking:
    """The candidates of one layer: all columns but the protected ones; column 0 is slot `first` of each cache head.

    scores: what is ranked. unpooled: the same without pooling, to break ties. layer_weight: the weight of the layer for
    the layer allocation, 1 by default. second: how a head chooses its last pairs, if not by `scores`. by_head: how many
    candidates each cache head has, where they differ; columns beyond them score -inf. layers: more than 1 for a
    stack, whose heads stand one layer after the other. Nothing here depends on the budget: cells that differ in it
    share a ranking.
    """

    scores: Ranked
    unpooled: Ranked
    first: int
    layer_weight: float = 1.0
    second: SecondStage | None = None
    by_head: tuple[int, ...] | None = None
    layers: int = 1

    @property
    def candidates(self) -> int:
        """Number of candidates of a cache head, of the longest one if they differ."""
        return self.scores.shape[1]

    @property
    def available(self) -> tuple[int, ...]:
        """Candidates of each cache head."""
        return self.by_head or (self.candidates,) * self.scores.shape[0]

    @property
    def real_scores(self) -> Ranked:
        """The scores, in one row if heads have different numbers of candidates."""
        if self.by_head is None:
            return self.scores
        scores = self.scores.flatten()
        return scores[torch.nonzero_static(scores.isfinite(), size=sum(self.by_head))[:, 0]][None]

    @cached_property
    def places(self) -> Int[Tensor, "cache_heads columns"]:
        """The place of each candidate in the order of its head, from 0 for the best."""
        return _inverse(best_first(self.scores, self.unpooled), torch.int32)

    @property
    def order(self) -> Int[Tensor, "cache_heads columns"]:
        """Candidates of each cache head from best to worst."""
        return _inverse(self.places.long(), torch.long)

    def order_for(self, counts: Int[Tensor, "cache_heads"]) -> Int[Tensor, "cache_heads columns"]:
        """Candidates of each cache head, first the `counts` that it keeps: as `order`, or in two stages."""
        if self.second is None:
            return self.order
        by_first_stage = ((counts + self.second.protected) * self.second.part).long() - self.second.protected
        first = self.places < by_first_stage.to(self.places.device)[:, None]
        return best_first(self.second.scores.masked_fill(first, torch.inf), self.scores)

    @cached_property
    def flat_orders(self) -> Int[Tensor, "layers pairs"]:
        """All candidates of each layer from best to worst; candidate c of head h is number h * candidates + c."""
        shape = (self.layers, len(self.scores) // self.layers * self.candidates)
        scores = self.scores.reshape(shape)
        return best_first(scores, scores if self.unpooled is self.scores else self.unpooled.reshape(shape))

    @property
    def flat_order(self) -> Flat:
        """All candidates of the only layer from best to worst."""
        (order,) = self.flat_orders
        return order

    @cached_property
    def shared(self) -> "Ranking":
        """The same ranking for every cache head of a layer: the mean over the heads."""
        return self.mapped(lambda scores: mean_over_heads(scores, self.layers))

    def mapped(self, change: Callable[[Ranked], Ranked]) -> "Ranking":
        """Return the ranking with all of its scores changed."""
        second = self.second and replace(self.second, scores=change(self.second.scores))
        scores = change(self.scores)
        unpooled = scores if self.unpooled is self.scores else change(self.unpooled)
        return replace(self, scores=scores, unpooled=unpooled, second=second)

    def by_layer(self) -> "tuple[Ranking, ...]":
        """Return the rankings of the layers of a stack, as views."""
        if self.layers == 1:
            return (self,)
        scores = self.scores.unflatten(0, (self.layers, -1)).unbind()
        unpooled = scores if self.unpooled is self.scores else self.unpooled.unflatten(0, (self.layers, -1)).unbind()
        stages: Iterable[SecondStage | None] = (None,) * self.layers
        if (second := self.second) is not None:
            later = second.scores.unflatten(0, (self.layers, -1)).unbind()
            stages = [replace(second, scores=each) for each in later]
        parts = zip(scores, unpooled, stages, strict=True)
        return tuple(replace(self, scores=each, unpooled=other, second=stage, layers=1) for each, other, stage in parts)

    def counts(self, pairs: int) -> tuple[int, ...]:
        """Return how many of the `pairs` best candidates of the layer are in each cache head."""
        return self.counts_beyond(0, pairs)

    def counts_beyond(self, least: int, pairs: int) -> tuple[int, ...]:
        """Return how many candidates each head keeps: its `least` best, then the best others of the layer.

        pairs: candidates that the heads keep in all.
        """
        if (least, pairs) in self._known:
            return self._known[least, pairs]
        if least == 0:
            return _tally(self.flat_order[:pairs], self.scores.shape[0], self.candidates)
        guaranteed = [min(least, count) for count in self.available]
        others = self.flat_order[self.places.flatten()[self.flat_order] >= least]
        beyond = _tally(others[: pairs - sum(guaranteed)], self.scores.shape[0], self.candidates)
        return tuple(map(int.__add__, guaranteed, beyond))

    def counts_above(self, least: float) -> Int[Tensor, "cache_heads"]:
        """Return how many candidates of each cache head score at least `least`."""
        return (self.scores >= least).sum(dim=1)

    @cached_property
    def _known(self) -> dict[tuple[int, int], tuple[int, ...]]:
        """The results of `counts_beyond` by `least` and `pairs`, which `Rankings.tally` fills in."""
        return {}


class Rankings(tuple[Ranking, ...]):
    """The rankings of all layers, in order.

    stacks: the same rankings, of several layers at a time where these lie in one array. layer_weights: of all layers,
    if they are weighed.
    """

    stacks: tuple[Ranking, ...]

    def __new__(cls, stacks: Iterable[Ranking], layer_weights: Sequence[float] = ()) -> "Rankings":
        stacks, weights = list(stacks), iter(layer_weights)
        layers = list[Ranking]()
        for place, stack in enumerate(stacks):
            of_stack = stack.by_layer()
            if layer_weights:
                of_stack = [replace(layer, layer_weight=next(weights)) for layer in of_stack]
            if stack.layers == 1:  # one ranking, whose orders are cached once
                (stacks[place],) = of_stack
            layers += of_stack
        rankings = super().__new__(cls, layers)
        rankings.stacks = tuple(stacks)
        return rankings

    def tally(self, asked: Sequence[tuple[int, int] | None]) -> None:
        """Compute `counts_beyond` of all layers of stacks for their `least` and `pairs`, with one wait for the device.

        asked: both numbers of each layer; None where nothing will be asked of it.
        """
        parts, counted, start = list[Tensor](), list[tuple[int, tuple[int, int]]](), 0
        for stack in self.stacks:
            of_stack = [(start + place, pair) for place, pair in enumerate(asked[start:][: stack.layers]) if pair]
            together = stack.layers > 1 or stack.scores.device.type == "cuda"  # otherwise nothing waits
            if together and stack.candidates and len(of_stack) == stack.layers:
                parts.append(_counts_beyond(stack, [pair for _, pair in of_stack]))
                counted += of_stack
            start += stack.layers
        if parts:
            counts = torch.cat([part.to(parts[0].device, non_blocking=True) for part in parts]).tolist()
            for (place, pair), by_head in zip(counted, counts, strict=True):
                self[place]._known[pair] = tuple(by_head)


def joined(stacks: Sequence[Ranking]) -> Ranking:
    """Return the rankings of consecutive layers as one."""
    if len(stacks) == 1:
        return stacks[0]
    scores, layers = torch.cat([stack.scores for stack in stacks]), sum(stack.layers for stack in stacks)
    same = all(stack.unpooled is stack.scores for stack in stacks)
    unpooled = scores if same else torch.cat([stack.unpooled for stack in stacks])
    stages = [stack.second for stack in stacks if stack.second is not None]
    second = replace(stages[0], scores=torch.cat([stage.scores for stage in stages])) if stages else None
    return replace(stacks[0], scores=scores, unpooled=unpooled, second=second, layers=layers)


def in_larger_stacks(stacks: Sequence[Ranking]) -> list[Ranking]:
    """Return the rankings of layers on one GPU with up to `JOINED` of them as one."""
    of_layer = {(len(stack.scores) // stack.layers, stack.candidates, stack.scores.device) for stack in stacks}
    if len(of_layer) != 1 or not any(stack.layers > 1 or stack.scores.device.type == "cuda" for stack in stacks):
        return list(stacks)
    return [joined(stacks[start : start + JOINED]) for start in range(0, len(stacks), JOINED)]


def by_stack(rankings: Sequence[Ranking]) -> Sequence[Ranking]:
    """Return the rankings of all layers, of several at a time where layers lie so: the heads are in the same order."""
    return rankings.stacks if isinstance(rankings, Rankings) else rankings


def _counts_beyond(stack: Ranking, asked: Sequence[tuple[int, int]]) -> Int[Tensor, "layers heads"]:
    """`counts_beyond` of every layer of a stack for (least, pairs), not yet read from the device."""
    candidates, order = stack.candidates, stack.flat_orders
    heads, device = len(stack.scores) // stack.layers, order.device
    guaranteed = [min(least, candidates) for least, _ in asked]
    rows = [guaranteed, [pairs - heads * each for each, (_, pairs) in zip(guaranteed, asked, strict=True)]]
    least, beyond = torch.tensor(rows).to(device, non_blocking=True)[..., None]
    if any(guaranteed):
        others = stack.places.view(order.shape).gather(1, order) >= least
        chosen = others & (others.cumsum(dim=1) <= beyond)
    else:
        chosen = torch.arange(order.shape[1], device=device) < beyond
    owners = torch.arange(heads, device=device)[:, None]
    by_head = ((order // candidates)[:, None] == owners) & chosen[:, None]
    return by_head.sum(dim=2) + least


def merged(parts: Mapping[tuple[int, ...], Ranking]) -> Ranking:
    """Return one ranking of a layer from the rankings of its cache heads of equal length, by the numbers of these
    heads.
    """
    if len(parts) == 1:
        return next(iter(parts.values()))
    rankings, heads = list(parts.values()), sorted((head, part) for part in parts for head in part)
    widest = max(ranking.candidates for ranking in rankings)
    places = torch.tensor([head for part in parts for head in part]).argsort()
    joined = partial(_joined, widest=widest, places=places)
    stages = [ranking.second for ranking in rankings if ranking.second is not None]
    return replace(
        rankings[0],
        scores=joined([ranking.scores for ranking in rankings]),
        unpooled=joined([ranking.unpooled for ranking in rankings]),
        second=replace(stages[0], scores=joined([stage.scores for stage in stages])) if stages else None,
        by_head=tuple(parts[part].candidates for _, part in heads),
    )


def _joined(by_part: list[Tensor], widest: int, places: Tensor) -> Tensor:
    padded = [F.pad(scores, (0, widest - scores.shape[1]), value=-torch.inf) for scores in by_part]
    return torch.cat(padded)[places.to(padded[0].device, non_blocking=True)]


def mean_over_heads(scores: Ranked, cells: int) -> Ranked:
    """Return the mean over the cache heads of each cell; the same bits where they are equal already."""
    by_cell = scores.unflatten(0, (cells, -1))
    equal = (by_cell == by_cell[:, :1]).flatten(1).all(dim=1)[:, None, None]
    return torch.where(equal, by_cell, by_cell.mean(dim=1, keepdim=True)).view(scores.shape)


def best_first(scores: Ranked, unpooled: Ranked) -> Int[Tensor, "cache_heads columns"]:
    """Columns from best to worst: higher score, then higher unpooled score, then lower position."""
    order = unpooled.argsort(dim=1, descending=True, stable=True)
    if unpooled is scores:
        return order
    return order.gather(1, scores.gather(1, order).argsort(dim=1, descending=True, stable=True))


def _inverse(order: Int[Tensor, "rows columns"], dtype: torch.dtype) -> Int[Tensor, "rows columns"]:
    """Return the place of each column in the order of its row; from places, the order."""
    places = torch.arange(order.shape[1], dtype=dtype, device=order.device).expand_as(order)
    return order.new_empty(order.shape, dtype=dtype).scatter_(1, order, places)


def best_entries(
    scores: Float[Tensor, "entries"], unpooled: Float[Tensor, "entries"], count: int, strict: bool
) -> Int[Tensor, "_"]:
    """Return the `count` best entries, best first; with `strict` only those that score more than the last of these."""
    best = best_first(scores[None], unpooled[None])[0, :count]
    return best[scores[best] > scores[best[-1]]] if strict and len(best) else best


def _tally(numbers: Flat, heads: int, candidates: int) -> tuple[int, ...]:
    """Return how many of these candidates each head has; unlike `bincount`, the host waits for the result only."""
    if candidates == 0:
        return (0,) * heads
    owners = torch.arange(heads, device=numbers.device)[:, None]
    return tuple((numbers // candidates == owners).sum(dim=1).tolist())
