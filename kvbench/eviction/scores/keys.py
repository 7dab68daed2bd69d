"""Scores that read nothing but keys and values, neither queries nor the model: KeyNorm, KeyDiff, LagKV and CurDKV."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from kvbench.cache.kernels.choice import kernel_module
from kvbench.cache.kv_cache import LayerCache, ObservationWindow
from kvbench.cache.shapes import Scores
from kvbench.eviction.scores.ragged import RaggedHeads, Slots
from kvbench.eviction.scores.random import generator
from kvbench.eviction.scores.score import RawTerm, Reduce, Score
from kvbench.support.annotations import Help
from kvbench.support.errors import UserError
from kvbench.support.facts import LASTING, Claim


@dataclass(frozen=True)
class KeyNorm(Score):
    """-|k_j|.

    Devoto et al. 2024, https://arxiv.org/abs/2406.11430 (`Knorm` of kvpress): keys of small norm draw much attention.
    """

    name: str = "key_norm"
    signed: ClassVar[bool] = True
    row_term: ClassVar[RawTerm] = "nothing"
    separate: ClassVar[bool] = True

    def claims(self) -> Iterator[Claim]:
        yield from super().claims()
        yield Claim(f"score {self.name}", "", grants=frozenset({LASTING}))

    def __call__(self, layer: LayerCache, window: ObservationWindow | None, reduce: Reduce) -> Scores:
        return -layer.keys.float().norm(dim=-1).view(layer.cache_heads, -1)

    def raw_segments(self, heads: RaggedHeads, sums: Slots | None) -> Slots:
        return heads.weighed(None, heads.keys, 2, None, heads.empty()[None])[0]


@dataclass(frozen=True)
class KeyDiff(Score):
    """-cos(k_j, mean over all cached keys of k / |k|). A key of zeros has no direction and counts 0.

    KeyDiff (Park et al. 2025, https://arxiv.org/abs/2504.15364), on keys after RoPE as in kvpress.
    """

    name: str = "key_diff"
    signed: ClassVar[bool] = True
    row_term: ClassVar[RawTerm] = "nothing"
    separate: ClassVar[bool] = True

    def __call__(self, layer: LayerCache, window: ObservationWindow | None, reduce: Reduce) -> Scores:
        keys, _ = layer.dense
        directions = F.normalize(keys.float(), dim=-1)
        centre = F.normalize(directions.mean(dim=1, keepdim=True), dim=-1)
        return -(directions * centre).sum(dim=-1)

    def raw_segments(self, heads: RaggedHeads, sums: Slots | None) -> Slots:
        return kernel_module("cosines").key_diff(heads.keys, heads.segments)


@dataclass(frozen=True)
class LagKV(Score):
    """The place of (s_j(k) + s_j(v)) / 2 among the pairs of its partition, over their number. s_j(x) is softmax_j of
    the standard deviation over the channels of (x_j - a) / (b - a), with a and b the least and largest of each channel
    in the next partition.

    LagKV (Liang et al. 2025, https://arxiv.org/abs/2504.04704), as in `lag_kv.py` of its code when it compresses a
    prompt. That code splits off a new partition whenever enough tokens were generated, and never scores again what it
    has kept; an eviction here (`schedule.decode_every`) scores all that is left.

    Partitions have `lag` tokens and begin after the first `sink`. These, the last whole partition and the tokens behind
    it have no reference: they rank above all others, the first tokens first, then the newest. cross: the numbers of
    different partitions are compared themselves, not their places.
    """

    sink: Annotated[int, Help("G1: as in lag_kv.py; kvpress: 4")] = 16
    lag: Annotated[
        int, Help("G2: tokens of a partition, as in LagKV's README.md and kvpress; the class in lag_kv.py: 1024")
    ] = 128
    cross: Annotated[
        bool,
        Help("G3, true: kvpress' cross_scoring: partitions compete for the budget, which the paper splits evenly"),
    ] = False
    name: str = "lagkv"
    row_term: ClassVar[RawTerm] = "nothing"
    separate: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.sink < 0:
            raise UserError(f"score.sink={self.sink}: the number of first tokens is 0 or more, e.g. 16")
        if self.lag < 2:
            raise UserError(f"score.lag={self.lag}: a partition has at least 2 tokens to choose from, e.g. 128")

    def __call__(self, layer: LayerCache, window: ObservationWindow | None, reduce: Reduce) -> Scores:
        keys, values = layer.dense
        tokens = layer.lengths[0]
        scores = 1 + torch.arange(tokens, device=keys.device) / tokens
        scores[: self.sink] = 2
        scores = scores.repeat(layer.cache_heads, 1)
        stop = self.sink + max(0, tokens - self.sink) // self.lag * self.lag
        if stop >= self.sink + 2 * self.lag:
            share = (self._shares(keys[:, self.sink : stop]) + self._shares(values[:, self.sink : stop])) / 2
            if not self.cross:
                share = share.argsort(dim=-1, stable=True).argsort(dim=-1) / self.lag
            scores[:, self.sink : stop - self.lag] = share.flatten(1)
        return scores

    def raw_segments(self, heads: RaggedHeads, sums: Slots | None) -> Slots:
        settings = self.sink, self.lag, self.cross
        return kernel_module("lagkv").lag_scores(heads.keys, heads.values, heads.segments, *settings)

    def _shares(self, states: Float[Tensor, "kv_heads tokens head_dim"]) -> Float[Tensor, "kv_heads partitions lag"]:
        """s_j of every token of all partitions but the last. A channel that is constant in the reference counts 0."""
        partitions = states.float().unflatten(1, (-1, self.lag))
        least, width = partitions[:, 1:].aminmax(dim=2, keepdim=True)
        width = width - least
        apart = torch.where(width > 0, (partitions[:, :-1] - least) / width, 0)
        return apart.std(dim=-1).softmax(dim=-1)


@dataclass(frozen=True)
class Cur(Score):
    """l_j(k) l_j(v) over its sum, with l_j(x) = |x_j|^2 / sum_i |x_i|^2 over the tokens i of the same `span`.

    CurDKV (Sengupta et al. 2025, https://arxiv.org/abs/2509.15038), as `CURPress` of kvpress, where the leverage of a
    row is its squared norm, or its random projection's, relative to its neighbours.

    Spans of `span` tokens follow each other from the first token; None: all tokens. leverage: `kv_product`, or
    `kv_avg`, the mean of both, `key` or `value` alone. sketch: keys and values are projected to so many random
    directions first, the same for all heads of a layer; None: not projected. The first `sink` tokens score 1, as much
    as a pair could have.
    """

    sink: Annotated[int, Help("first tokens, which score 1")] = 4
    leverage: Annotated[
        Literal["key", "value", "kv_avg", "kv_product"], Help("key, value, or kv_avg, the mean of both")
    ] = "kv_product"
    span: Annotated[int | None, Help("tokens of a neighbourhood, as in kvpress; null: all tokens")] = 16
    sketch: Annotated[int | None, Help("X1: kvpress projects nothing; 20: random directions, as in the paper")] = None
    seed: Annotated[int, Help("of the random directions")] = 0
    name: str = "cur"
    row_term: ClassVar[RawTerm] = "nothing"

    def __post_init__(self) -> None:
        if self.sink < 0:
            raise UserError(f"score.sink={self.sink}: the number of first tokens is 0 or more, e.g. 4")
        for name in ("span", "sketch"):
            if (number := getattr(self, name)) is not None and number < 1:
                raise UserError(f"score.{name}={number}: null, or a number from 1, e.g. 16")

    def __call__(self, layer: LayerCache, window: ObservationWindow | None, reduce: Reduce) -> Scores:
        states = (self.projected(part.float(), layer.index) for part in layer.dense)
        keys, values = (self._shares(part.square().sum(dim=-1)) for part in states)
        if self.leverage == "kv_product":
            scores = keys * values
        elif self.leverage == "kv_avg":
            scores = (keys + values) / 2
        else:
            scores = keys if self.leverage == "key" else values
        scores = scores / _positive(scores.sum(dim=1, keepdim=True))
        scores[:, : self.sink] = 1
        return scores

    def raw_segments(self, heads: RaggedHeads, sums: Slots | None) -> Slots:
        states = (self.projected(part, heads.index) for part in (heads.keys, heads.values))
        return kernel_module("norms").cur(*states, heads.segments, self.leverage, self.span, self.sink)

    def _shares(self, squares: Float[Tensor, "heads slots"]) -> Float[Tensor, "heads slots"]:
        """Return squared norms over the sums of their spans."""
        slots, span = squares.shape[1], self.span or squares.shape[1]
        spans = F.pad(squares, (0, -slots % span)).unflatten(-1, (-1, span))
        return (spans / _positive(spans.sum(dim=-1, keepdim=True))).flatten(-2)[..., :slots]

    def projected(self, states: Float[Tensor, "*_ head_dim"], layer: int) -> Float[Tensor, "*_ width"]:
        """Keys or values of a layer in the directions of `sketch`; as they are if there is none."""
        if self.sketch is None:
            return states
        directions = torch.randn(states.shape[-1], self.sketch, generator=generator(self.seed, layer, self.sketch))
        return states.float() @ (directions.to(states.device, non_blocking=True) / self.sketch**0.5)


def _positive(sums: Float[Tensor, "*_"]) -> Float[Tensor, "*_"]:
    """Return sums to divide by: a sum of 0, whose numbers are all 0, becomes the least positive number."""
    return sums.clamp_min(torch.finfo(sums.dtype).tiny)
