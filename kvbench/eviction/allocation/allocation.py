"""Divide a budget over the layers, then over the heads of each layer. The base classes divide evenly.

An allocation is a frozen dataclass with a `kind` of its own, by which `policy.heads` and `policy.layers` name it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from kvbench.cache.kv_cache import LayerCache, ObservationWindow
from kvbench.cache.shapes import Ranked
from kvbench.eviction.allocation.shares import AllocationBudget
from kvbench.eviction.ranking import Ranking, Rankings, best_entries, by_stack
from kvbench.support import facts
from kvbench.support.facts import Claim, Fact

Counts = tuple[tuple[int, ...], ...]
"""Candidates kept, by layer and cache head."""
UNEVEN = "keeps more pairs in some heads than in others"


class Heads:
    """Base class of head allocations.

    whole: whether a head keeps all tokens or only the protected ones. ragged: whether it divides among heads that hold
    different numbers of pairs, and chooses in a stack of layers as in one layer.
    """

    kind: str
    whole: ClassVar[bool] = False
    ragged: ClassVar[bool] = False

    @property
    def even(self) -> bool:
        """Whether every head of a layer keeps equally many pairs, by the order of each head."""
        return type(self).__call__ is Heads.__call__

    def claims(self, policy: str) -> Iterator[Claim]:
        """Yield the facts that it needs of other settings of a policy of this name, and those that it makes untrue."""
        setting = f"policy.heads={self.kind} of {policy}"
        if not self.whole:
            needs = {facts.PAIRS_DIFFER: "chooses among the pairs of a head"}
            yield Claim(setting, "policy.heads=binary, e.g. policy=duo_attention or kvzip_head", needs)
        if not self.even:
            needs = {facts.COMPARABLE: "ranks heads against each other", facts.SIZED_BUDGET: "divides a budget"}
            breaks = dict.fromkeys((facts.EVEN_BUDGET, facts.EVEN_IN_LAYER, facts.EVEN_HEADS), UNEVEN)
            yield Claim(setting, "policy.heads=uniform", needs, breaks)

    def asks(self, heads: int, share: int, terms: AllocationBudget) -> tuple[int, int] | None:
        """Say what `__call__` will ask of the ranking of a layer with so many heads: `least` and `pairs` of
        `Ranking.counts_beyond`. None: something else, or nothing.
        """
        return None

    def chooses(self, ranking: Ranking) -> Ranking:
        """Return the ranking that each head chooses from; by default its own candidates."""
        return ranking

    def __call__(self, ranking: Ranking, share: int, terms: AllocationBudget) -> tuple[int, ...]:
        """Return the candidates of each cache head when each keeps `share` on average."""
        return (min(share, ranking.candidates),) * ranking.scores.shape[0]

    def over_layers(self, rankings: Sequence[Ranking], terms: AllocationBudget) -> Counts:
        """Return the candidates of each cache head of each layer when the pairs of all layers compete with each other.

        `official` is KVzip's kvcache.py: what is kept is strictly better than the last one within the budget.
        """
        on_host = [torch.stack((part.scores.flatten(), part.unpooled.flatten())).cpu() for part in by_stack(rankings)]
        scores, unpooled = torch.cat(on_host, dim=1)
        available = torch.tensor([ranking.available for ranking in rankings])
        pairs = min(available.numel() * terms.base, int(available.sum()))
        kept = best_entries(scores, unpooled, pairs, strict=terms.variant == "official")
        candidates = torch.tensor([ranking.candidates for ranking in rankings])
        ends = candidates.repeat_interleave(available.shape[1]).cumsum(0)
        counts = torch.bucketize(kept, ends, right=True).bincount(minlength=available.numel())
        return tuple(tuple(row) for row in counts.view_as(available).tolist())


class Layers:
    """Base class of layer allocations.

    reads_rows: whether `layer_weight` needs the observation window. reads_scores: whether it reads scores as a
    distribution. least_rows: observed queries that it needs. official_divides_all: whether `official` divides a budget
    that holds every token too, so that layers with small shares are evicted from.

    compares_layers: whether the pairs of all layers compete, so that each head chooses by its own order.
    divides_heads: whether it divides the budget over the heads too. whole: whether a layer keeps all tokens or only the
    protected ones. ragged: whether it divides among layers that hold different numbers of pairs.
    """

    kind: str
    reads_rows: ClassVar[bool] = False
    reads_scores: ClassVar[bool] = False
    least_rows: ClassVar[int] = 1
    official_divides_all: ClassVar[bool] = False
    compares_layers: ClassVar[bool] = False
    divides_heads: ClassVar[bool] = False
    whole: ClassVar[bool] = False
    ragged: ClassVar[bool] = False

    @property
    def even(self) -> bool:
        """Whether every layer keeps equally many pairs."""
        own = type(self)
        return own.__call__ is Layers.__call__ and own.counts is Layers.counts

    def claims(self, policy: str) -> Iterator[Claim]:
        """Yield the facts that it needs of other settings of a policy of this name, and those that it makes untrue."""
        needs, breaks = dict[Fact, str](), dict[Fact, str]()
        if self.reads_scores:
            needs[facts.UNSIGNED] = "reads scores as a distribution"
        if not self.even:
            needs[facts.SIZED_BUDGET] = "divides a budget"
            if self.compares_layers:
                needs[facts.COMPARABLE] = "ranks heads against each other"
            breaks = {facts.EVEN_LAYERS: "keeps more pairs in some layers than in others", facts.EVEN_HEADS: UNEVEN}
            if self.divides_heads:
                breaks |= dict.fromkeys((facts.EVEN_BUDGET, facts.EVEN_IN_LAYER), UNEVEN)
        if needs or breaks:
            yield Claim(f"policy.layers={self.kind} of {policy}", "policy.layers=uniform", needs, breaks)

    def check(self) -> None:
        """Raise UserError for settings that name what is not there."""

    def check_model(self, layers: int, kv_heads: int) -> None:
        """Raise UserError for a model that it cannot divide a budget of; layers: from which pairs are evicted."""

    def rows(self, window: int, tokens: int) -> int:
        """Return how many queries of a prompt of `tokens` `layer_weight` reads. Default: all of the window."""
        return window

    def layer_weight(
        self, layer: LayerCache, window: ObservationWindow | None, candidates: Ranked, recent: int
    ) -> float | Tensor:
        """Return the weight of a layer, given the scores of its candidates: a number, or one that is still on the
        device, so that the weights of all layers are read at once. Default: 1.
        """
        return 1.0

    def __call__(self, layer_weights: Sequence[float], terms: AllocationBudget) -> tuple[int, ...]:
        """Return the candidates per cache head for each of the layers with these weights."""
        return (terms.base,) * len(layer_weights)

    def counts(self, rankings: Sequence[Ranking], heads: Heads, terms: AllocationBudget) -> Counts:
        """Return the candidates of each cache head of each layer: the share of the layer, which `heads` divides."""
        shares = self([ranking.layer_weight for ranking in rankings], terms)
        pairs = list(zip(rankings, shares, strict=True))
        if isinstance(rankings, Rankings):
            rankings.tally([heads.asks(len(ranking.scores), share, terms) for ranking, share in pairs])
        return tuple(heads(ranking, share, terms) for ranking, share in pairs)


@dataclass(frozen=True)
class UniformHeads(Heads):
    """Every head of the layer the same: SnapKV, H2O, TOVA per head, StreamingLLM."""

    kind: Literal["uniform"] = "uniform"
    ragged: ClassVar[bool] = True


@dataclass(frozen=True)
class UniformLayers(Layers):
    """Every layer the same: SnapKV, H2O, TOVA, StreamingLLM."""

    kind: Literal["uniform"] = "uniform"
    ragged: ClassVar[bool] = True
