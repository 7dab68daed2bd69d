"""Scores that are made of another score, their host: CAOTE and CriticalKV."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from kvbench.cache.kernels.choice import kernel_module
from kvbench.cache.kv_cache import LayerCache, ObservationWindow
from kvbench.cache.shapes import Ranked, Scores
from kvbench.eviction.pooling import Group, Weight
from kvbench.eviction.ranking import SecondStage
from kvbench.eviction.scores.attn import Attention
from kvbench.eviction.scores.ragged import Merge, Planes, RaggedHeads, Slots
from kvbench.eviction.scores.score import RawTerm, Reduce, Score, ScoreInputs, row_term_of
from kvbench.support.annotations import Help
from kvbench.support.errors import UserError
from kvbench.support.facts import SIZED_BUDGET, Claim

Values = Float[Tensor, "kv_heads tokens head_dim"]
Centres = Float[Tensor, "cache_heads head_dim"]
TOKENS_AT_ONCE = 4096
"""Values that are compared or projected at a time."""
RESOLVED = 1e-12
"""The smallest 1 - h that float64 distinguishes from 0."""


@dataclass(frozen=True)
class WrappedScore(Score):
    """Base class of scores that read what their host reads, and start from its raw scores.

    Raises UserError for a host that can be negative, that is of the same kind, or that reads hidden states.
    """

    host: Annotated[
        Score,
        Help(
            "a score: score.host=obcache_value, score.host.FIELD=VALUE; not key_norm or key_diff, which can be negative"
        ),
    ] = field(default_factory=Attention)
    __pydantic_config__: ClassVar[dict[str, Any]] = {"arbitrary_types_allowed": True}

    def __post_init__(self) -> None:
        if self.host.signed:
            why = "no weight that sums to one: it can be negative"
        elif isinstance(self.host, WrappedScore):
            why = "its own host" if type(self.host) is type(self) else f"a score over a host as {self.name} is"
        elif self.host.inputs.hidden_states:
            why = "made of hidden states, which only the score itself can read"
        else:
            return
        raise UserError(f"score.host={self.host.name} is {why}; choose another host of {self.name}, e.g. attn")

    @property
    def inputs(self) -> ScoreInputs:  # type: ignore[override]
        return self.host.inputs

    @property
    def group(self) -> Group:  # type: ignore[override]
        return self.host.group

    @property
    def least_rows(self) -> int:  # type: ignore[override]
        return self.host.least_rows

    def __call__(self, layer: LayerCache, window: ObservationWindow | None, reduce: Reduce) -> Scores:
        return self.host(layer, window, reduce)


@dataclass(frozen=True)
class Caote(WrappedScore):
    """h_j / (1 - h_j) |v_j - x| with h the host score over its sum and x = sum_j h_j v_j; `squared`: |v_j - x|^2.

    CAOTE (Goel et al. 2025, https://arxiv.org/abs/2504.14051), equations 6 to 8: how much the output of a head changes
    if a pair is evicted; the pooled host score stands for the attention weight. Unsquared, which is the form that the
    paper proves; equation 7 squares the norm only. A pair that has all of the mass gets the largest possible change of
    the output, because no other pair is left to compare with.

    merge: what the query heads of a KV head merge, as the policy says (`group`): their `attention`, of which the error
    is then taken, or their `error`, each of its own attention. The paper's equations are of one head.
    """

    squared: Annotated[
        bool, Help("C1, true: the squared norm as in eq. 7; the paper's eqs. 6 and 8 and its proof do not square it")
    ] = False
    merge: Annotated[
        Literal["attention", "error"],
        Help("C3, error: each query head of a KV head has an error of its own, and these are merged"),
    ] = "attention"
    name: str = "caote"
    pools_protected: ClassVar[bool] = True
    from_mean: ClassVar[bool] = False
    """Whether x is the mean of the values."""

    @property
    def merges_last(self) -> bool:  # type: ignore[override]
        return self.merge == "error"

    @property
    def row_term(self) -> RawTerm | None:  # type: ignore[override]
        return None if self.merges_last else row_term_of(self.host)

    @property
    def row_merge(self) -> Merge | None:  # type: ignore[override]
        return self.host.row_merge

    def weigh(self, layer: LayerCache, recent: int) -> Weight | None:
        return self.host.weigh(layer, 0)

    def refine(self, shaped: Ranked, layer: LayerCache) -> Ranked:
        host = self.host.refine(shaped, layer).double()
        mass = host.sum(dim=1, keepdim=True)
        share = torch.where(mass > 0, host / mass, 0)
        remaining = torch.where(mass > 0, (mass - host) / mass, 1)
        distances, bound = _distances(layer.dense[1], self.centre(share, layer.dense[1]))
        if self.squared:
            distances, bound = distances.square(), bound.square()
        moved = (share / remaining.clamp_min(RESOLVED)) * distances
        return torch.where(remaining < RESOLVED, moved.maximum(bound), moved).float()

    def raw_segments(self, heads: RaggedHeads, sums: Slots | None) -> Slots:
        return self.host.raw_segments(heads, sums)

    def weigh_segments(self, heads: RaggedHeads, raw: Slots) -> Slots:
        return self.host.weigh_segments(heads, raw)

    def refine_segments(self, heads: RaggedHeads, pooled: Planes, out: Planes) -> Planes:
        host = self.host.refine_segments(replace(heads, recent=0), pooled, out)
        settings = heads.values, heads.segments, self.squared, self.from_mean, RESOLVED, out
        return kernel_module("caote").caote(host, *settings)

    def centre(self, share: Float[Tensor, "cache_heads tokens"], values: Values) -> Centres:
        """Return the reference value of each head: the mean of its values, weighted by the host."""
        grouped = share.float().unflatten(0, (values.shape[0], -1))
        return (grouped @ values.float()).flatten(0, 1)


@dataclass(frozen=True)
class FastCaote(Caote):
    """h_j / (1 - h_j) |v_j - x| with h the host score over its sum and x the mean of the values.

    FastCAOTE (https://arxiv.org/abs/2504.14051), equation 8.
    """

    name: str = "fastcaote"
    row_term = Caote.row_term  # type: ignore[assignment]
    from_mean: ClassVar[bool] = True

    def centre(self, share: Float[Tensor, "cache_heads tokens"], values: Values) -> Centres:
        return values.float().mean(dim=1).repeat_interleave(share.shape[0] // values.shape[0], dim=0)


def _distances(values: Values, centres: Centres) -> tuple[Ranked, Ranked]:
    """|v_j - x|, and |v_j| plus the largest norm of a value of the head, one row per cache head."""
    group = centres.shape[0] // values.shape[0]
    apart, norms = [], []
    for part in values.split(TOKENS_AT_ONCE, dim=1):
        wide = part.float().repeat_interleave(group, dim=0)
        apart.append((wide - centres[:, None]).norm(dim=-1))
        norms.append(wide.norm(dim=-1))
    length = torch.cat(norms, dim=1)
    return torch.cat(apart, dim=1), length + length.amax(dim=1, keepdim=True)


@dataclass(frozen=True)
class CriticalKV(WrappedScore):
    """h_j for the first `first_stage` of the pairs that a head keeps, (h_j + epsilon) |W_o v_j|_1 for the others.

    CriticalKV (Feng et al. 2025, https://arxiv.org/abs/2502.03805), as `CriticalKVPress` and `CriticalAdaKVPress` of
    its code, which kvpress shares: the norm bounds how far the output of the attention moves when the pair is
    evicted. h is the host score as the policy pools and reduces it, W_o the part of the output projection for a query
    head; the norm is the mean over the query heads that share the value. How many pairs a head keeps is decided by h
    alone. Where the policy sums over the observed rows, h is their mean, as in the code: epsilon then weighs the same
    whatever the window. protected: whether the tokens that are always kept count among the first.
    """

    first_stage: Annotated[float, Help("the part of a head's pairs that the host chooses alone")] = 0.5
    epsilon: Annotated[float, Help("W1: as in the code; 0: as in the paper")] = 1e-4
    protected: Annotated[
        bool, Help("W2: as in the code, which chooses the window first; false: half of what is chosen beside it")
    ] = True
    name: str = "criticalkv"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.first_stage <= 1:
            raise UserError(f"score.first_stage={self.first_stage}: a part of the pairs is from 0 to 1, e.g. 0.5")
        if not self.epsilon >= 0:
            raise UserError(f"score.epsilon={self.epsilon}: 0 or more is added to the scores, e.g. 1e-4")

    @property
    def inputs(self) -> ScoreInputs:  # type: ignore[override]
        return replace(self.host.inputs, projections=("output",))

    @property
    def pools_protected(self) -> bool:  # type: ignore[override]
        return self.host.pools_protected

    @property
    def by_head(self) -> bool:  # type: ignore[override]
        return self.host.by_head

    def __call__(self, layer: LayerCache, window: ObservationWindow | None, reduce: Reduce) -> Scores:
        return self.host(layer, window, "mean" if reduce == "sum" else reduce)

    def weigh(self, layer: LayerCache, recent: int) -> Weight | None:
        return self.host.weigh(layer, recent)

    def refine(self, shaped: Ranked, layer: LayerCache) -> Ranked:
        return self.host.refine(shaped, layer)

    def claims(self) -> Iterator[Claim]:
        yield from super().claims()
        needs = {SIZED_BUDGET: "chooses a part of the budget by other scores"}
        yield Claim(f"score {self.name}", "another score", needs)

    def second_stage(self, ranked: Ranked, layer: LayerCache, protected: int) -> SecondStage:
        norms = projected_norms(layer, ranked.shape[1], 1).unflatten(0, (ranked.shape[0], -1)).mean(dim=1)
        return SecondStage((ranked + self.epsilon) * norms, self.first_stage, protected if self.protected else 0)


def projected_norms(layer: LayerCache, tokens: int, power: int) -> Float[Tensor, "heads tokens"]:
    """|W_o v_j| of the first `tokens` tokens for every query head: L1 or L2, in float32."""
    values = layer.dense[1][:, :tokens]
    matrices = layer.projections["output"].to(values.device).float().unflatten(1, (layer.query_heads, -1))
    group = layer.query_heads // len(values)
    heads = range(layer.query_heads)
    return torch.stack([_norms(values[head // group], matrices[:, head].mT, power) for head in heads])


def _norms(values: Tensor, matrix: Tensor, power: int) -> Tensor:
    """Return the norms of the values of a KV head [tokens, head_dim] times a matrix, some tokens at a time."""
    return torch.cat([(part.float() @ matrix).norm(p=power, dim=-1) for part in values.split(TOKENS_AT_ONCE)])
