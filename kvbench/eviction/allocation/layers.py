"""Layer allocation: how many candidates each cache head of a layer keeps on average.

In the variant `paper` the sum over the layers is exact; `official` is the published code, which may overspend.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from kvbench.cache.kernels.column_sums import EPSILON
from kvbench.cache.kv_cache import LayerCache, ObservationWindow, dense_parts
from kvbench.cache.shapes import Ranked, Scores
from kvbench.eviction.allocation.allocation import Counts, Heads, Layers
from kvbench.eviction.allocation.shares import AllocationBudget, largest_remainder, shares
from kvbench.eviction.ranking import Ranking
from kvbench.eviction.scores.attn import received
from kvbench.eviction.scores.window import blocks, chunks, fused_sums, moments
from kvbench.support.annotations import Help
from kvbench.support.errors import MissingFile, UserError
from kvbench.support.named import made

Splits = Annotated[
    Literal["candidates", "budget"],
    Help(
        "L12, budget: the whole budget is divided, protected tokens included, as in LAVa's eq. 21 (pyramid), eq. 23 "
        "(preference) and Algorithm 2 (entropy)"
    ),
]
"""What layers have shares of: the candidates within the budget, as in published code, or the whole budget, protected
tokens included, as LAVa prints it (Algorithm 2, equations 21 and 23). `official` is always the former."""


@dataclass(frozen=True)
class PyramidLayers(Layers):
    """PyramidKV (Cai et al. 2024, https://arxiv.org/abs/2406.02069): linear from the first layer down to base / beta.

    b_l = t - l (t - b / beta) / (L - 1) for layer l of L, with b the mean and t = 2 b - b / beta at the top, or all
    candidates if those are fewer.

    `official` is pyramidkv_utils.py of KVCache-Factory: integer division, which may overspend, and with equal heads no
    pyramid at all for a prompt shorter than twice the base.

    splits: with `budget`, b is the whole budget (LAVa, equation 21). A layer keeps at least its protected tokens.
    """

    kind: Literal["pyramid"] = "pyramid"
    beta: Annotated[int | float, Help("the last layer keeps 1/beta of the mean")] = 20
    splits: Splits = "candidates"
    ragged: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.beta >= 1:
            raise UserError(
                f"policy.layers.beta={self.beta}: allowed: 1 or more; the last layer keeps 1/beta of the mean"
            )

    def __call__(self, layer_weights: Sequence[float], terms: AllocationBudget) -> tuple[int, ...]:
        layers, base = len(layer_weights), terms.base
        if layers == 1:
            return (base,)
        official = terms.variant == "official"
        if official and terms.even_heads and terms.tokens < 2 * base:
            return (base,) * layers
        shares_all = self.splits == "budget" and not official
        mean, most = (terms.budget, terms.tokens) if shares_all else (base, terms.candidates)
        bottom = int(mean // self.beta) if official else mean / self.beta
        top = 2 * mean - bottom
        if top > most:
            top, bottom = most, 2 * mean - most
        if official:
            return tuple(int(top - layer * ((top - bottom) // (layers - 1))) for layer in range(layers))
        line = [top - layer * (top - bottom) / (layers - 1) for layer in range(layers)]
        return (
            beside_protected(line, terms)
            if shares_all
            else largest_remainder(line, terms.total(layers), terms.limits(layers))
        )


@dataclass(frozen=True)
class EntropyLayers(Layers):
    """LAVa (equation 7 and Algorithm 2): shares by the entropy of the layer's candidate scores.

    b_l = L b e_l / sum_k e_k with e = -sum p log p / log n over the n candidate scores of a layer, p each one's part of
    their sum. Equation 7 divides by H N instead: the shares are the same. Pairs that a layer has no candidates for are
    shared among the others.

    `official` rounds down, and does not redistribute what a full layer leaves over, even where the budget holds every
    token: layers of less than average entropy are evicted from. With the mixture of heads its floor
    is the whole budget's, because the published code never refreshes it (a misspelt attribute).

    splits: with `budget`, b is the whole budget (Algorithm 2). A layer keeps at least its protected tokens.
    """

    kind: Literal["entropy"] = "entropy"
    splits: Splits = "candidates"
    reads_scores: ClassVar[bool] = True
    official_divides_all: ClassVar[bool] = True
    ragged: ClassVar[bool] = True

    def layer_weight(
        self, layer: LayerCache, window: ObservationWindow | None, candidates: Ranked, recent: int
    ) -> Tensor:
        return entropy(candidates)

    def __call__(self, layer_weights: Sequence[float], terms: AllocationBudget) -> tuple[int, ...]:
        total = len(layer_weights) * terms.base
        if terms.variant == "paper" or not sum(layer_weights) > 0:
            return by_weight(layer_weights, terms, self.splits)
        return tuple(int(layer_weight / sum(layer_weights) * total) for layer_weight in layer_weights)


@dataclass(frozen=True)
class PreferenceLayers(Layers):
    """CAKE (Qin et al. 2025, https://arxiv.org/abs/2503.12491): shares by dispersion and shift of attention.

    b_l = L b P_l / sum_k P_k with P = E^(1/tau1) V^(1/tau2), E the entropy and V the variance over the observed rows of
    the raw attention weights. A block of a single row has no V: its layers are weighed by E.

    `official` is cake_cache.py: a cascade over the layers; prompts of at most budget + recent tokens are not evicted.

    queries: with `all`, E and V are over all queries of the prompt, the variance of a column over those that attend to
    it (LAVa, equation 22). splits: with `budget`, b is the whole budget (LAVa, equation 23). A layer keeps at least its
    protected tokens.
    """

    kind: Literal["preference"] = "preference"
    tau1: int | float = 1.0
    tau2: int | float = 1.0
    queries: Annotated[
        Literal["window", "all"], Help("L13, all: as in LAVa's eq. 22, over every query of the prompt")
    ] = "window"
    splits: Splits = "candidates"
    reads_rows: ClassVar[bool] = True
    least_rows: ClassVar[int] = 2
    ragged: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("tau1", "tau2"):
            if not getattr(self, name) > 0:
                raise UserError(f"policy.layers.{name}={getattr(self, name)}: allowed: a temperature above 0, e.g. 1.0")

    def rows(self, window: int, tokens: int) -> int:
        return tokens if self.queries == "all" else window

    def layer_weight(
        self, layer: LayerCache, window: ObservationWindow | None, candidates: Ranked, recent: int
    ) -> float | Tensor:
        assert window is not None
        parts = [
            preference(part, window.of_heads(heads, layer.cache_heads), recent, seeing=self.queries == "all")
            for heads, part in dense_parts(layer)
        ]
        dispersion, shift = (of[0] if len(of) == 1 else math.fsum(map(float, of)) for of in zip(*parts, strict=True))
        shift_factor = shift ** (1 / self.tau2) if window.lse.shape[1] > 1 else 1
        return dispersion ** (1 / self.tau1) * shift_factor

    def __call__(self, layer_weights: Sequence[float], terms: AllocationBudget) -> tuple[int, ...]:
        if terms.variant == "paper":
            return by_weight(layer_weights, terms, self.splits)
        if terms.tokens <= terms.budget + terms.recent:
            return (terms.candidates,) * len(layer_weights)
        return cascade(layer_weights, terms.base, terms.candidates)


@dataclass(frozen=True)
class GlobalLayers(Layers):
    """KVzip: the best KV pairs of all layers and heads are kept; no layer has a fixed share."""

    kind: Literal["global"] = "global"
    compares_layers: ClassVar[bool] = True
    divides_heads: ClassVar[bool] = True
    ragged: ClassVar[bool] = True

    def counts(self, rankings: Sequence[Ranking], heads: Heads, terms: AllocationBudget) -> Counts:
        return heads.over_layers(rankings, terms)


@dataclass(frozen=True)
class LazyLayers(Layers):
    """SimLayerKV (Zhang et al. 2024, https://arxiv.org/abs/2410.13846): layers keep all tokens or the protected ones.

    The laziness of a layer is the attention that the observed rows give the protected tokens, the mean over rows and
    query heads. As many layers as the budget pays for keep all tokens, the least lazy first; the rest is not spent. A
    layer that was evicted from before cannot keep all tokens.

    `official` is the rule of paper and code: a layer is lazy if its laziness exceeds `published_threshold`, whatever
    the budget.
    """

    kind: Literal["lazy"] = "lazy"
    published_threshold: Annotated[
        int | float, Help("variant official only; kvpress: Llama 3 0.9, Llama 2 0.65, Mistral 0.8, Qwen 0.85")
    ] = 0.9
    reads_rows: ClassVar[bool] = True
    whole: ClassVar[bool] = True
    ragged: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 <= self.published_threshold <= 1:
            raise UserError(
                f"policy.layers.published_threshold={self.published_threshold}: attention is from 0 to 1, e.g. 0.9"
            )

    def layer_weight(
        self, layer: LayerCache, window: ObservationWindow | None, candidates: Ranked, recent: int
    ) -> Tensor:
        assert window is not None
        weights, stop = received(layer, window, "mean").double(), layer.lengths[0] - recent
        evictable = weights[:, stop - candidates.shape[1] : stop]
        return (weights.sum() - evictable.sum()) / weights.shape[0]

    def __call__(self, layer_weights: Sequence[float], terms: AllocationBudget) -> tuple[int, ...]:
        limits = terms.limits(len(layer_weights))
        complete = [layer for layer, limit in enumerate(limits) if limit == terms.candidates]
        least_lazy_first = sorted(complete, key=layer_weights.__getitem__)
        if terms.variant == "official":
            kept = {layer for layer in least_lazy_first if layer_weights[layer] <= self.published_threshold}
        else:
            kept = set(least_lazy_first[: len(limits) * terms.base // max(1, terms.candidates)])
        return tuple(terms.candidates if layer in kept else 0 for layer in range(len(limits)))


@dataclass(frozen=True)
class TableLayers(Layers):
    """LU-KV (https://arxiv.org/abs/2602.08585): what each head of each layer keeps, by a table made offline.

    The table, a .npy file at `path`, has the part that is evicted from each KV head at a budget of 0.99, 0.98, ... 0.01
    of the tokens, [99, layers, KV heads]. What heads keep is in proportion to the rest, protected tokens included.

    `official` is `LUKVPress` of kvpress: each layer rounds by itself, so that the sum is approximate.

    Raises MissingFile where there is no file, UserError for one that is no such table.
    """

    kind: Literal["table"] = "table"
    path: Annotated[
        str | None,
        Help("a .npy of the part that is evicted, [99, layers, KV heads], for budgets of 0.99, 0.98, ... 0.01"),
    ] = None
    table_sha256: str = field(init=False)
    divides_heads: ClassVar[bool] = True
    ragged: ClassVar[bool] = True

    def __post_init__(self) -> None:
        digest = "" if self.path is None else hashlib.sha256(self.table.tobytes()).hexdigest()[:16]
        object.__setattr__(self, "table_sha256", digest)

    @cached_property
    def table(self) -> "np.ndarray[Any, np.dtype[np.float64]]":
        """The parts that are evicted, [99, layers, KV heads]."""
        expected = f"a .npy of parts from 0 to 1, [99, layers, KV heads]{made('budget_table')}"
        if self.path is None:
            raise UserError(f"policy.layers.path=null: name a budget table, {expected}")
        if not Path(self.path).is_file():
            raise MissingFile(f"policy.layers.path={self.path}: no such file; expected {expected}")
        try:
            table = np.load(self.path, mmap_mode="r", allow_pickle=False)  # nothing is read before its shape is known
            if table.dtype.kind not in "biuf":
                raise TypeError(f"its numbers are of the type {table.dtype}")
        except Exception as error:  # numpy raises many kinds for a damaged header or another content
            problem = " ".join(str(error).split())[:200]
            raise UserError(f"policy.layers.path={self.path} is no array: {problem}; expected {expected}") from error
        if table.ndim != 3 or len(table) != 99 or not table.size or not ((table >= 0) & (table <= 1)).all():
            raise UserError(f"policy.layers.path={self.path} has shape {list(table.shape)}; expected {expected}")
        return np.array(table, np.float64)

    def check(self) -> None:
        _ = self.table

    def check_model(self, layers: int, kv_heads: int) -> None:
        of_table = self.table.shape[1:]
        if of_table != (layers, kv_heads):
            raise UserError(
                f"policy.layers.path={self.path}: the table has {of_table[0]} layers and {of_table[1]} KV heads, but "
                f"this model evicts from {layers} layers with {kv_heads} KV heads{made('budget_table')}"
            )

    def counts(self, rankings: Sequence[Ranking], heads: Heads, terms: AllocationBudget) -> Counts:
        by_layer = self.by_table(len(rankings), len(rankings[0].scores), terms)
        return tuple(tuple(map(min, row, ranking.available)) for row, ranking in zip(by_layer, rankings, strict=True))

    def by_table(self, layers: int, heads: int, terms: AllocationBudget) -> Counts:
        """Return the candidates of each cache head of each layer, as if all of them held every token."""
        _, table_layers, kv_heads = self.table.shape
        if table_layers != layers or heads % kv_heads:
            raise UserError(
                f"policy.layers.path={self.path}: a table of {table_layers} layers and {kv_heads} KV heads is not of a "
                f"model that evicts from {layers} layers with {heads} cache heads"
            )
        row = min(98, max(0, round((1 - terms.budget / terms.tokens) * 100) - 1))
        kept = np.repeat(1 - self.table[row], heads // kv_heads, axis=1) * terms.tokens
        if terms.variant == "official":
            rounded = [largest_remainder(layer, round(sum(layer)), terms.tokens) for layer in kept.tolist()]
            return tuple(tuple(max(0, count - terms.protected) for count in layer) for layer in rounded)
        beside = (kept - terms.protected).clip(0).flatten().tolist()
        split = shares(layers * heads * terms.base, beside, terms.candidates)
        return tuple(split[start : start + heads] for start in range(0, len(split), heads))


def by_weight(layer_weights: Sequence[float], terms: AllocationBudget, splits: Splits) -> tuple[int, ...]:
    """Return the candidates of each layer, in proportion to their weights, or so that whole budgets are."""
    mass = sum(layer_weights)
    if splits == "budget" and mass > 0:
        return beside_protected([weight / mass * len(layer_weights) * terms.budget for weight in layer_weights], terms)
    layers = len(layer_weights)
    return shares(terms.total(layers), layer_weights, terms.limits(layers))


def beside_protected(budgets: Sequence[float], terms: AllocationBudget) -> tuple[int, ...]:
    """Return the candidates of layers with these whole budgets; where protected tokens exceed one, the others pay."""
    layers, beside = len(budgets), [max(0, budget - terms.protected) for budget in budgets]
    return shares(terms.total(layers), beside, terms.limits(layers))


def cascade(layer_weights: Sequence[float], base: int, most: int) -> tuple[int, ...]:
    """Return the result of CAKE's cascade: after every layer, all layers so far are evicted to their new share.

    Shares only shrink what is left, so the smallest one counts.
    """
    total = len(layer_weights) * base
    kept = [most] * len(layer_weights)
    for reached in range(1, len(layer_weights) + 1):
        mass = sum(layer_weights[:reached])
        parts = [layer_weight / mass if mass > 0 else 1 / reached for layer_weight in layer_weights[:reached]]
        budgets = adjusted([int(part * total) for part in parts], total, most)
        kept[:reached] = map(min, kept, budgets)
    return tuple(max(0, count) for count in kept)


def adjusted(budgets: Sequence[int], total: int, most: int) -> list[int]:
    """Clip budgets, distribute the excess equally, then the difference from `total` once: CAKE's `adjust_budgets`."""
    clipped = [min(budget, most) for budget in budgets]
    _deal(clipped, sum(budgets) - sum(clipped), [index for index, budget in enumerate(clipped) if budget < most])
    difference = total - sum(clipped)
    can_change = [budget < most if difference > 0 else budget > 1 for budget in clipped]
    _deal(clipped, difference, [index for index, can in enumerate(can_change) if can])
    return [min(budget, most) for budget in clipped]


def _deal(budgets: list[int], amount: int, takers: Sequence[int]) -> None:
    """Add equal parts of `amount` (negative: subtract) to the `takers` in place; the first ones get the remainder."""
    if not takers or not amount:
        return
    sign = 1 if amount > 0 else -1
    part, rest = divmod(abs(amount), len(takers))
    for place, index in enumerate(takers):
        budgets[index] += sign * (part + (place < rest))


def entropy(scores: Ranked) -> Float[Tensor, ""]:
    """Return -sum p log p / log(number of scores), with p the scores of all heads divided by their sum.

    LAVa, equation 7 as in its code. 0 for scores without any mass, 1 for a single one that has some.
    """
    mass = scores.double().flatten()
    total = mass.sum()
    p = mass / total
    spread = -torch.xlogy(p, p).sum() / math.log(mass.numel()) if mass.numel() > 1 else torch.ones_like(total)
    return spread.masked_fill(total <= 0, 0.0)


def preference(
    layer: LayerCache, window: ObservationWindow, recent: int, seeing: bool = False
) -> tuple[float | Tensor, float | Tensor]:
    """Return CAKE's dispersion -sum A log(A + 1e-10) and shift, the sum of the variances of A over the rows.

    Over all query heads, the observed rows, and every column but the newest `recent`; rows are not normalised again.
    A row that does not attend to a column counts as 0 in its variance, or with `seeing` not at all. A single row has no
    shift. What a kernel sums stays on the device.
    """
    stop, count = layer.lengths[0] - recent, window.lse.shape[1]
    fast = fused_sums(layer, window, ("dispersion", "attn_variance", *(("attn",) if seeing else ())))
    if fast is not None and count > 1:
        variance = over_seeing(fast["attn"] / count, fast["attn_variance"], count) if seeing else fast["attn_variance"]
        kernel_dispersion, shift = (part[:, :stop].sum(dtype=torch.float64) for part in (fast["dispersion"], variance))
        return kernel_dispersion.clamp_min(0), shift
    dispersion = 0.0
    for block, num_tokens in blocks(layer, window):
        for chunk in chunks(layer, block, num_tokens):
            weights = chunk.weights[..., : max(0, stop - chunk.start)]
            dispersion -= float((weights * (weights + EPSILON).log()).sum(dtype=torch.float64))
    if count == 1:
        return max(0.0, dispersion), 0.0
    mean, variance = moments(layer, window)
    if seeing:
        variance = over_seeing(mean, variance, count)
    return max(0.0, dispersion), float(variance[:, :stop].sum(dtype=torch.float64))


def over_seeing(mean: Scores, variance: Scores, count: int) -> Scores:
    """Return the unbiased variance of each column over the rows that attend to it: 0 for one row.

    mean, variance: over `count` rows, where those that do not attend to the column count as 0.
    """
    seeing = torch.arange(mean.shape[1], 0, -1, device=mean.device).clamp_max(count).double()
    squares = variance.double() * (count - 1) - mean.double().square() * count * (count - seeing) / seeing
    return squares.clamp_min(0) / (seeing - 1).clamp_min(1)
