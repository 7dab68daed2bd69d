"""Pooling along the tokens and reduction over the query heads of a KV head, between raw scores and ranking."""

from dataclasses import dataclass
from typing import Annotated, Literal, get_args

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from kvbench.cache.shapes import Ranked, Scores
from kvbench.support.annotations import Help
from kvbench.support.errors import UserError

Kind = Literal["max", "avg"]
Shaping = Literal["pool", "group"]
ORDERS: tuple[tuple[Shaping, Shaping], ...] = (("group", "pool"), ("pool", "group"))
"""Both orders of the two steps."""
Group = Literal["mean", "max", "sum", "none", "layer_mean"]
"""How the query heads of a KV head are merged; `none` keeps them separate, `layer_mean` gives all heads one mean."""


@dataclass(frozen=True)
class Weight:
    """Factors of the scores, applied right before or after pooling: one row per KV head, one column per token or one
    for all. They apply to query heads and KV heads alike, whichever the scores have at that point.
    """

    values: Float[Tensor, "kv_heads columns"]
    after_pool: bool = True

    def __call__(self, scores: Scores) -> Scores:
        return scores * self.values.repeat_interleave(scores.shape[0] // self.values.shape[0], dim=0)


@dataclass(frozen=True)
class Pool:
    """A window of `size` neighbours along the tokens, stride 1, as many columns out as in.

    `max` ignores columns beyond the ends, `avg` counts them as zeros and always divides by `size`, like the
    `max_pool1d` and `avg_pool1d` calls of SnapKV's code with padding size // 2.

    Raises UserError for another kind and for a size that is not odd.
    """

    kind: Annotated[Kind, Help("max or avg of the neighbourhood")]
    size: Annotated[int, Help("neighbours in a row, the token itself included: an odd number")]

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise UserError(f"pool.kind={self.kind} is not allowed; allowed: {', '.join(get_args(Kind))}")
        if not isinstance(self.size, int) or isinstance(self.size, bool):
            raise UserError(f"pool.size={self.size!r} is not an integer, e.g. 7")
        if self.size < 1 or self.size % 2 == 0:
            raise UserError(f"pool.size={self.size} has no middle: use an odd number such as {max(1, self.size) | 1}")

    def __call__(self, scores: Scores) -> Scores:
        if scores.shape[1] == 0:
            return scores
        pool = F.max_pool1d if self.kind == "max" else F.avg_pool1d
        return pool(scores[None], self.size, stride=1, padding=self.size // 2)[0]


def reduce_group(scores: Scores, group: str, kv_heads: int, layers: int = 1) -> Ranked:
    """Merge the query heads of each KV head by `mean`, `max` or `sum`; `none` keeps one row per query head.

    `layer_mean` is the mean over all rows of a layer, the same for each of its KV heads; there are rows of `layers`
    layers. The others leave scores unchanged that already have one row per KV head. Raises UserError for any other
    word.
    """
    if group not in get_args(Group):
        raise UserError(f"group={group} is not allowed; allowed: {', '.join(get_args(Group))}")
    if group == "layer_mean":
        return scores.unflatten(0, (layers, -1)).mean(dim=1).repeat_interleave(kv_heads // layers, dim=0)
    if group == "none" or scores.shape[0] == kv_heads:
        return scores
    grouped = scores.unflatten(0, (kv_heads, -1))
    if group == "max":
        return grouped.amax(dim=1)
    return grouped.mean(dim=1) if group == "mean" else grouped.sum(dim=1)


def pool_and_reduce(
    scores: Scores,
    pool: Pool | None,
    group: str,
    order: tuple[Shaping, Shaping],
    kv_heads: int,
    weight: Weight | None = None,
    layers: int = 1,
) -> Ranked:
    """Pooling, with the weight, and group reduction in the stated order.

    The order matters except for an average with a mean or sum and for a maximum with a maximum. Without a pool the
    weight is applied where pooling would be. Raises UserError for an unknown order or group.
    """
    if order not in ORDERS:
        raise UserError(f"order={order!r} is not allowed; allowed: {', '.join(map(str, ORDERS))}")
    for step in order:
        if step == "group":
            scores = reduce_group(scores, group, kv_heads, layers)
            continue
        if weight is not None and not weight.after_pool:
            scores = weight(scores)
        if pool is not None:
            scores = pool(scores)
        if weight is not None and weight.after_pool:
            scores = weight(scores)
    return scores
