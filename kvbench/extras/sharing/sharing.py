"""One set of tokens for all heads of a layer, or for all layers: how their scores become one.

The mean over the heads of a layer takes the scores as they are, as TOVA's published code has it (`heads=shared`).
Scores of different layers can differ by orders of magnitude, some have any sign, and only their order within a layer
means something. So each layer's scores are standardised first, to mean 0 and variance 1 over its candidates: every
layer has the same weight. With the maximum, the rows of single heads are standardised: a token counts as much as it
does for the head that wants it most. That is the rule of the eviction mode `union` of TensorRT-LLM's TriAttention.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, get_args

import torch

from kvbench.cache.shapes import Ranked
from kvbench.eviction.ranking import Ranking
from kvbench.eviction.step import RANKINGS, Step
from kvbench.support.annotations import Help
from kvbench.support.errors import UserError
from kvbench.support.facts import COMPARABLE, EVEN_BUDGET, EVEN_HEADS, EVEN_LAYERS, ONE_EVICTION, Claim

Merge = Literal["mean", "max"]
"""How several scores become one."""
Share = Literal["head", "layer", "model"]


def over_heads(ranking: Ranking, merge: Merge) -> Ranking:
    """Return a ranking that is the same for every cache head of the layer."""
    return ranking.shared if merge == "mean" else ranking.mapped(_most_of_any_head)


def over_layers(rankings: Sequence[Ranking], merge: Merge) -> tuple[Ranking, ...]:
    """Rankings that are the same for every layer, of layers whose heads have one ranking each (`over_heads`)."""
    mean_or_most = partial(_over_layers, merge=merge)
    scores = mean_or_most([ranking.scores for ranking in rankings])
    unpooled = mean_or_most([ranking.unpooled for ranking in rankings])
    stages = [ranking.second for ranking in rankings if ranking.second is not None]
    second = replace(stages[0], scores=mean_or_most([stage.scores for stage in stages])) if stages else None
    shared = replace(rankings[0], scores=scores, unpooled=unpooled, second=second)
    return tuple(replace(shared, layer_weight=ranking.layer_weight) for ranking in rankings)


def standardised(scores: Ranked) -> Ranked:
    """Return the scores of each row with mean 0 and variance 1; rows of equal scores become 0."""
    if scores.shape[1] == 0:
        return scores
    alike = scores.amax(dim=1, keepdim=True) == scores.amin(dim=1, keepdim=True)
    spread = scores.std(dim=1, keepdim=True, correction=0).clamp_min(torch.finfo(scores.dtype).tiny)
    return torch.where(alike, 0, (scores - scores.mean(dim=1, keepdim=True)) / spread)


def _most_of_any_head(scores: Ranked) -> Ranked:
    return standardised(scores).amax(dim=0, keepdim=True).expand_as(scores)


def _over_layers(by_layer: Sequence[Ranked], merge: Merge) -> Ranked:
    """Return each layer's scores on the device of the first, merged over the layers."""
    rows = [scores.to(by_layer[0].device, non_blocking=True) for scores in by_layer]
    if merge == "max":  # the rows of heads were standardised already
        return torch.stack(rows).amax(dim=0)
    return torch.stack([standardised(scores) for scores in rows]).mean(dim=0)


@dataclass(frozen=True)
class Sharing(Step):
    """One set of tokens for all heads of a layer, or for all layers."""

    share: Annotated[
        Share, Help("who keeps the same tokens: nobody (head), the heads of a layer (layer), all layers (model)")
    ] = "head"
    share_score: Annotated[
        Merge,
        Help(
            "the score of a token for all of them: the mean, over layers of standardised scores; or the max of the "
            "standardised scores of all heads"
        ),
    ] = "mean"
    order: ClassVar[int] = RANKINGS

    def __post_init__(self) -> None:
        for name, allowed in (("share", get_args(Share)), ("share_score", get_args(Merge))):
            if getattr(self, name) not in allowed:
                choices = ", ".join(allowed)
                raise UserError(f"policy.{name}={getattr(self, name)} is not allowed; allowed: {choices}")

    @property
    def idle(self) -> bool:
        return self == Sharing()

    def claims(self, policy: Any) -> Iterator[Claim]:
        if self.share != "head":
            needs = {EVEN_BUDGET: "keeps one set for all heads of a layer"}
            if self.share_score == "mean":
                needs[COMPARABLE] = "averages scores of several heads (policy.share_score=max does not)"
            yield Claim(f"{self.setting} of {policy.name}", "policy.share=head", needs)
        if self.share == "model":
            needs = {EVEN_LAYERS: "keeps one set for all layers"}
            needs |= {ONE_EVICTION: "is decided once, after the prompt"} if "budget" in policy.accepts else {}
            grants = frozenset({EVEN_HEADS})
            yield Claim(f"{self.setting} of {policy.name}", "policy.share=layer", needs, grants=grants)

    def chooses(self, ranking: Ranking) -> Ranking:
        return ranking if self.share == "head" else over_heads(ranking, self.share_score)

    def choices(self, rankings: tuple[Ranking, ...]) -> tuple[Ranking, ...]:
        return over_layers(rankings, self.share_score) if self.share == "model" else rankings
