"""LagKV: how unlike a pair is to the range of those that follow it. Reads neither queries nor the model.

LagKV (Liang et al. 2025, https://arxiv.org/abs/2504.04704), as in `lag_kv.py` of its code when it compresses a prompt.
That code splits off a new partition whenever enough tokens were generated, and never scores again what it has kept;
an eviction here (`schedule.decode_every`) scores all that is left.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from kvbench.cache.kv_cache import LayerCache, Window
from kvbench.cache.shapes import Scores
from kvbench.eviction.scores.score import Reduce, Score
from kvbench.support.errors import UserError


@dataclass(frozen=True)
class LagKV(Score):
    """The place of (s_j(k) + s_j(v)) / 2 among those of its partition, over their number. s_j(x) is softmax_j of the
    standard deviation over the channels of (x_j - a) / (b - a), with a and b the least and largest of each channel in
    the next partition.

    Partitions have `lag` tokens and begin after the first `sink`. These, the last whole partition and the tokens behind
    it have no reference: they rank above all others, the first tokens first, then the newest. cross: the numbers of
    different partitions are compared themselves, not their places.
    """

    sink: int = 16
    lag: int = 128
    cross: bool = False
    name: str = "lagkv"
    head_by_head: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.sink < 0:
            raise UserError(f"score.sink={self.sink}: the number of first tokens is 0 or more, e.g. 16")
        if self.lag < 2:
            raise UserError(f"score.lag={self.lag}: a partition has at least 2 tokens to choose from, e.g. 128")

    def __call__(self, layer: LayerCache, rows: Window | None, reduce: Reduce) -> Scores:
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

    def _shares(self, states: Float[Tensor, "kv_heads tokens head_dim"]) -> Float[Tensor, "kv_heads partitions lag"]:
        """s_j of every token of all partitions but the last. A channel that is constant in the reference counts 0."""
        partitions = states.float().unflatten(1, (-1, self.lag))
        least, width = partitions[:, 1:].aminmax(dim=2, keepdim=True)
        width = width - least
        apart = torch.where(width > 0, (partitions[:, :-1] - least) / width, 0)
        return apart.std(dim=-1).softmax(dim=-1)
