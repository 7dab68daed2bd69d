"""CurDKV: leverage scores of keys and values, as a CUR decomposition of the attention output would choose its rows.

CurDKV (Sengupta et al. 2025, https://arxiv.org/abs/2509.15038), as `CURPress` of kvpress, where the leverage of a row
is taken to be its squared norm, or that of its random projection, relative to its neighbours.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from kvbench.cache.kv_cache import LayerCache, Window
from kvbench.cache.shapes import Scores
from kvbench.eviction.scores.random import generator
from kvbench.eviction.scores.score import Reduce, Score
from kvbench.support.errors import UserError

Leverage = Literal["key", "value", "kv_avg", "kv_product"]


@dataclass(frozen=True)
class Cur(Score):
    """l_j(k) l_j(v) over its sum, with l_j(x) = |x_j|^2 / sum_i |x_i|^2 over the tokens i of the same `span`.

    Spans of `span` tokens follow each other from the first token; None: all tokens. leverage: `kv_product`, or
    `kv_avg`, the mean of both, `key` or `value` alone. sketch: keys and values are projected to so many random
    directions first, the same for all heads of a layer; None: not projected. The first `sink` tokens score 1, as much
    as a pair could have.
    """

    sink: int = 4
    leverage: Leverage = "kv_product"
    span: int | None = 16
    sketch: int | None = None
    seed: int = 0
    name: str = "cur"
    head_by_head: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.sink < 0:
            raise UserError(f"score.sink={self.sink}: the number of first tokens is 0 or more, e.g. 4")
        for name in ("span", "sketch"):
            if (number := getattr(self, name)) is not None and number < 1:
                raise UserError(f"score.{name}={number}: null, or a number from 1, e.g. 16")

    def __call__(self, layer: LayerCache, rows: Window | None, reduce: Reduce) -> Scores:
        states = tuple(part.float() for part in layer.dense)
        if self.sketch is not None:
            directions = torch.randn(
                states[0].shape[2], self.sketch, generator=generator(self.seed, layer.index, self.sketch)
            )
            states = tuple(part @ (directions.to(part.device) / self.sketch**0.5) for part in states)
        keys, values = map(self._shares, states)
        by_kind = {"key": keys, "value": values, "kv_avg": (keys + values) / 2, "kv_product": keys * values}
        scores = by_kind[self.leverage]
        scores = scores / scores.sum(dim=1, keepdim=True).clamp_min(torch.finfo(scores.dtype).tiny)
        scores[:, : self.sink] = 1
        return scores

    def _shares(self, states: Float[Tensor, "kv_heads tokens width"]) -> Scores:
        """The part of the squared norms of its span that each token has; 0 where all are 0."""
        squares = states.square().sum(dim=-1)
        parts = squares.split(self.span or squares.shape[1], dim=1)
        tiny = torch.finfo(squares.dtype).tiny
        return torch.cat([part / part.sum(dim=1, keepdim=True).clamp_min(tiny) for part in parts], dim=1)
