"""Evicted pairs merged into kept ones of the same cache head. The number of pairs, and which are kept, do not change.

Numbers are computed in float32 or wider and stored in the dtype of the cache. A kept pair into which nothing is merged
keeps its bits. Every sum has one order on a GPU too, where torch is set to add indexed rows in order, as in every run.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from kvbench.cache.kv_cache import LayerCache, ObservationWindow, dense_parts
from kvbench.cache.shapes import Kept
from kvbench.eviction.allocation.shares import Variant
from kvbench.eviction.scores.attn import received
from kvbench.eviction.scores.random import generator
from kvbench.eviction.step import Kind
from kvbench.models.decode.next_token import running_sums
from kvbench.support.annotations import Help
from kvbench.support.errors import UserError
from kvbench.support.facts import EVEN_IN_LAYER, EVICTS, MODEL_KEYS, UNCHANGED, Claim

MOST_PRODUCTS = 2**24
"""Products of evicted and kept keys that are held at a time."""
LEAST_NORM = 1e-6
"""A key with a smaller norm is divided by this."""

OfEvicted = Float[Tensor, "evicted"]
Rows = Float[Tensor, "_ head_dim"]


class Head(NamedTuple):
    """A cache head: where its pairs lie in `before`, which of them are kept and which evicted, counted from its first,
    and where the kept ones lie in `after`.
    """

    source: slice
    kept: Int[Tensor, "kept"]
    evicted: Int[Tensor, "evicted"]
    target: slice

    @property
    def merges(self) -> bool:
        """Whether there is a pair to merge, and one to merge it into."""
        return len(self.kept) > 0 and len(self.evicted) > 0


def heads_of(before: LayerCache, kept: Kept, after: LayerCache) -> list[Head]:
    """Return the cache heads of `after` in order. The host waits once for the device, however many heads there are."""
    group, heads = len(kept) // before.cache_heads, list[Head]()
    masks = kept.to(before.keys.device, non_blocking=True)
    for head, (number, start) in enumerate(zip(masks.sum(dim=1).tolist(), after.offsets, strict=False)):
        source = slice(*before.offsets[head // group : head // group + 2])
        pairs = source.stop - source.start
        mine = masks[head, :pairs]
        own = torch.nonzero_static(mine, size=number)[:, 0]
        evicted = torch.nonzero_static(~mine, size=pairs - number)[:, 0]
        heads.append(Head(source, own, evicted, slice(start, start + number)))
    return heads


def nearest(evicted: Rows, kept: Rows) -> tuple[OfEvicted, Int[Tensor, "evicted"]]:
    """Return the greatest cosine similarity of each evicted key with a kept one, and which one, the first of equal
    ones.
    """
    evicted, kept = (wide(keys) for keys in (evicted, kept))
    evicted, kept = (keys / keys.norm(dim=1, keepdim=True).clamp_min(LEAST_NORM) for keys in (evicted, kept))
    parts = [(part @ kept.T).max(dim=1) for part in evicted.split(max(1, MOST_PRODUCTS // max(1, len(kept))))]
    return torch.cat([part.values for part in parts]), torch.cat([part.indices for part in parts])


def wide(numbers: Tensor) -> Tensor:
    """Numbers in float32, or as they are if wider."""
    return numbers if numbers.dtype.itemsize >= 4 else numbers.float()


def blended(
    kept: Rows, own: float, evicted: Rows, weights: OfEvicted, places: Int[Tensor, "evicted"], divisor: Tensor | None
) -> Rows:
    """(own x_j + sum over the evicted i with place j of w_i x_i) / d_j, for every kept pair j.

    divisor: d_j, by default the sum of these weights.
    """
    sums = own * wide(kept)
    sums = sums.index_add(0, places, weights[:, None] * wide(evicted))
    mass = torch.zeros(len(kept), dtype=weights.dtype, device=weights.device).index_add(0, places, weights)
    new = (sums / ((own + mass) if divisor is None else divisor)[:, None]).to(kept.dtype)
    return torch.where((mass != 0)[:, None], new, kept)


def newest_sums(rows: Float[Tensor, "rows columns"], number: int) -> Float[Tensor, "rows columns"]:
    """Return the sum of the newest `number` rows up to each row, added in the same order on every device."""
    number, sums, summed, size = min(number, len(rows)), torch.zeros_like(rows), 0, 1
    while size <= number:  # `rows` are sums of the newest `size` rows
        if number & size:
            sums, summed = sums + older(rows, summed), summed + size
        rows, size = rows + older(rows, size), 2 * size
    return sums


def older(rows: Float[Tensor, "rows columns"], by: int) -> Float[Tensor, "rows columns"]:
    """Return the row that is `by` rows older than each, 0 before the first."""
    return F.pad(rows, (0, 0, by, 0))[: len(rows)]


THRESHOLDS = "thresholds"
"""What D2O remembers of each cache head: the name in `LayerCache.by_head`."""


class Merging(Kind):
    """Base class of the merges."""

    part: ClassVar[str] = "apply"

    def claims(self, policy: Any) -> Iterator[Claim]:
        needs, breaks = {EVICTS: "merges evicted pairs"}, {UNCHANGED: "changes kept pairs"}
        yield Claim(self.setting, "policy.apply=drop", needs, breaks)


@dataclass(frozen=True)
class D2O(Merging):
    """D2O (Wan et al. 2024, https://arxiv.org/abs/2406.13035): an evicted pair is merged into the kept pair whose key
    is most similar, if it is similar enough. Keys and values are merged with the same weights.

    x_j = (e x_j + sum_i exp(u_i) x_i) / (e + sum_i exp(u_i)) over the evicted pairs i whose nearest kept key is that of
    j and whose cosine similarity u_i is at least tau, with e = exp(1). At the first eviction tau is the mean of the
    u_i, later `beta` times that mean and 1 - beta times the last tau. Each cache head has a tau of its own.

    `official` is the published code: one tau per layer, its mean weighted by `published_beta`; the n-th evicted pairs
    of all heads are merged where the mean of their u is at least tau; x_j = (x_j + sum_i u_i x_i) / (1 + n_j), n_j
    their number.
    """

    kind: Literal["d2o"] = "d2o"
    beta: Annotated[
        int | float, Help("the weight of an eviction's own mean similarity in the threshold, 1: no memory")
    ] = 0.7
    published_beta: Annotated[int | float, Help("variant official only")] = 0.5

    def claims(self, policy: Any) -> Iterator[Claim]:
        yield from super().claims(policy)
        breaks = {MODEL_KEYS: "makes keys that no position has rotated (cam and nearest make none)"}
        yield Claim(self.setting, "policy.apply=drop", breaks=breaks)
        if policy.variant == "official":
            needs = {EVEN_IN_LAYER: "compares the n-th evicted pairs of all heads"}
            yield Claim("policy.apply=d2o policy.variant=official", "policy.variant=paper", needs)

    def __post_init__(self) -> None:
        for name, value in (("beta", self.beta), ("published_beta", self.published_beta)):
            if not 0 <= value <= 1:
                raise UserError(f"policy.apply.{name}={value}: allowed: 0 to 1, a weight, e.g. 0.7")

    def change(
        self, before: LayerCache, kept: Kept, after: LayerCache, window: ObservationWindow | None, variant: Variant
    ) -> LayerCache:
        heads = heads_of(before, kept, after)
        similar = {
            number: nearest(*(before.keys[head.source].index_select(0, part) for part in (head.evicted, head.kept)))
            for number, head in enumerate(heads)
            if head.merges
        }
        if not similar:
            return after
        last = after.by_head.get(THRESHOLDS)
        if last is None:
            last = torch.full((len(heads),), torch.nan, device=after.keys.device)
        official = variant == "official"
        means = torch.full(last.shape, torch.nan, dtype=torch.double, device=last.device)
        for number, (similarity, _) in similar.items():
            means[number] = similarity.double().mean()  # exact where all are equal
        if official:
            means[:] = torch.stack([similarity for similarity, _ in similar.values()]).double().mean()
        beta = self.published_beta if official else self.beta
        thresholds = torch.where(last.isnan(), means, beta * means + (1 - beta) * last)
        thresholds = torch.where(means.isnan(), last, thresholds)
        keys, values = after.keys.clone(), after.values.clone()
        together = torch.stack([similarity for similarity, _ in similar.values()]).mean(dim=0) if official else None
        for number, (similarity, places) in similar.items():
            head, own, divisor = heads[number], math.e, None
            is_merged = (similarity if together is None else together) >= thresholds[number]
            weights = similarity.exp() * is_merged
            if official:
                own, weights = 1.0, similarity * is_merged
                number_merged = torch.zeros_like(weights).new_zeros(head.target.stop - head.target.start)
                divisor = 1 + number_merged.index_add(0, places, is_merged.to(weights.dtype))
            for new, old in ((keys, before.keys), (values, before.values)):
                evicted = old[head.source].index_select(0, head.evicted)
                new[head.target] = blended(new[head.target], own, evicted, weights, places, divisor)
        return replace(after, keys=keys, values=values, by_head={**after.by_head, THRESHOLDS: thresholds.float()})


@dataclass(frozen=True)
class Nearest(Merging):
    """`MergingPress` of kvpress: the value of an evicted pair is merged into the value of the kept pair whose key is
    most similar. Keys stay.

    v_j = (v_j + sum_i w_i v_i) / (1 + sum_i w_i) with w_i = max(0, u_i) |v_i| / (|v_i| + |v_j|), over the evicted pairs
    i whose nearest kept key is that of j and whose cosine similarity u_i is at least `threshold`.
    """

    kind: Literal["nearest"] = "nearest"
    threshold: Annotated[int | float, Help("the least cosine similarity of keys at which a value is merged")] = 0.0

    def __post_init__(self) -> None:
        if not -1 <= self.threshold <= 1:
            raise UserError(f"policy.apply.threshold={self.threshold}: allowed: -1 to 1, a cosine, e.g. 0.5")

    def change(
        self, before: LayerCache, kept: Kept, after: LayerCache, window: ObservationWindow | None, variant: Variant
    ) -> LayerCache:
        values = after.values.clone()
        for head in heads_of(before, kept, after):
            if not head.merges:
                continue
            keys, own = before.keys[head.source], values[head.target]
            similarity, places = nearest(*(keys.index_select(0, part) for part in (head.evicted, head.kept)))
            evicted = before.values[head.source].index_select(0, head.evicted)
            norms, own_norms = (wide(part).norm(dim=1) for part in (evicted, own))
            weights = similarity.clamp_min(0) * (similarity >= self.threshold)
            weights = weights * norms / (norms + own_norms[places] + LEAST_NORM)
            values[head.target] = blended(own, 1.0, evicted, weights, places, None)
        return replace(after, values=values)


@dataclass(frozen=True)
class CaM(Merging):
    """CaM (Zhang et al. 2024, https://openreview.net/forum?id=LCTmppB165): the value of an evicted pair is added to the
    next `spread` kept ones, by chance. Keys stay.

    With probability min(1, a_i / mean_j a_j), an evicted pair i adds v_i / m to the values of the m kept pairs j that
    follow it: `spread`, or fewer at the end. a is the attention that a pair receives from the observed queries, the
    mean over them and over the query heads of its cache head. The chance is drawn from `seed`, layer and length.

    `official` is the published code for LLaMA: the mean is over all kept pairs behind i, not only the m nearest.
    """

    kind: Literal["cam"] = "cam"
    spread: Annotated[int, Help("kept pairs that share the value of an evicted one, 32 as in CaM's code")] = 32
    seed: Annotated[int, Help("of the draws that decide which values are merged")] = 0
    reads_rows: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.spread < 1:
            raise UserError(f"policy.apply.spread={self.spread}: allowed: 1 or more kept pairs, e.g. 32")

    def change(
        self, before: LayerCache, kept: Kept, after: LayerCache, window: ObservationWindow | None, variant: Variant
    ) -> LayerCache:
        assert window is not None
        attention, values = attention_of(before, window, len(kept)), after.values.clone()
        chances = self.chances(before.index, int(before.positions.max()) + 1, kept.shape)
        chances = chances.to(values.device, non_blocking=True)
        for number, head in enumerate(heads_of(before, kept, after)):
            if not head.merges:
                continue
            weights, number_kept = attention[number].double(), len(head.kept)
            # the place of the next kept pair: of the pairs before an evicted one, those that are not evicted
            first = head.evicted - torch.arange(len(head.evicted), device=values.device)
            stop = (first + self.spread).clamp_max(number_kept)
            until = torch.cat((weights.new_zeros(1), running_sums(weights.index_select(0, head.kept))))
            end = torch.full_like(stop, number_kept) if variant == "official" else stop
            mean = (until[end] - until[first]) / (end - first)
            likely = (weights.index_select(0, head.evicted) / mean).nan_to_num(nan=0.0, posinf=1.0)
            merged = (chances[number].index_select(0, head.evicted) < likely) & (stop > first)
            evicted = before.values[head.source].index_select(0, head.evicted).double()
            share = evicted * (merged / (stop - first).clamp_min(1))[:, None]
            parts = torch.cat((share, merged[:, None]), dim=1)
            parts = parts.new_zeros(number_kept + 1, parts.shape[1]).index_add(0, first, parts)[:-1]
            added, number_added = newest_sums(parts, self.spread).split([share.shape[1], 1], dim=1)
            own = values[head.target]
            values[head.target] = torch.where(number_added > 0, (own.double() + added).to(values.dtype), own)
        return replace(after, values=values)

    def chances(self, layer: int, tokens: int, shape: Sequence[int]) -> Float[Tensor, "cache_heads slots"]:
        """Return a number from 0 to 1 for each slot, on the CPU, which depends on nothing else."""
        return torch.rand(*shape, generator=generator(self.seed, layer, tokens))


def attention_of(layer: LayerCache, window: ObservationWindow, cache_heads: int) -> Float[Tensor, "cache_heads slots"]:
    """Return the attention that every slot receives on average from the rows, and from the query heads of its cache
    head.
    """
    sums = torch.zeros(cache_heads, max(layer.lengths), device=layer.keys.device)
    for heads, part in dense_parts(layer):
        by_query_head = received(part, window.of_heads(heads, layer.cache_heads), "mean")
        copies = cache_heads // layer.cache_heads
        places = torch.tensor([head * copies + copy for head in heads for copy in range(copies)])
        places = places.to(sums.device, non_blocking=True)
        sums[places, : part.lengths[0]] = by_query_head.unflatten(0, (len(places), -1)).mean(dim=1)
    return sums
