"""What the voting rows see of a dense layer, a chunk of columns at a time: the shared arithmetic of window scores.

All in float32. With A the attention weights, Z the scaled logits and o the output of a row, v the value of a column:
everything that the scores need is Z = q.k, u = o.v and one constant a row or column, so no array of
queries x tokens x head_dim is ever built, and K and V are read once.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from kvbench.attention import logits_by_chunk
from kvbench.cache import LayerCache, Window
from kvbench.shapes import Scores

Weights = Float[Tensor, "heads queries columns"]
Columns = Float[Tensor, "heads columns"]


@dataclass(frozen=True)
class Chunk:
    """A run of columns as the voting rows see them. `weights` and `logits` are 0 where a row cannot see a column."""

    weights: Weights
    logits: Weights
    values: Float[Tensor, "kv_heads columns head_dim"]
    outputs: Float[Tensor, "heads queries head_dim"]
    centre: Float[Tensor, "kv_heads 1 head_dim"]

    @property
    def group(self) -> int:
        """Query heads that share a KV head."""
        return self.weights.shape[0] // self.values.shape[0]

    @cached_property
    def value_norms(self) -> Float[Tensor, "heads 1 columns"]:
        """|v|^2 of each column."""
        return self.values.square().sum(-1).repeat_interleave(self.group, dim=0)[:, None]

    @cached_property
    def distances(self) -> Weights:
        """|v - o|^2, at least 0.

        v - o does not change when both are moved, so a common centre is taken off first: without it the expanded
        square is a small difference of large numbers, and rounding takes it below 0.
        """
        v2 = self._moved_values.square().sum(-1).repeat_interleave(self.group, dim=0)[:, None]
        o2 = self._moved_outputs.square().sum(-1)[..., None]
        return (v2 + o2 - 2 * self._products).clamp_min(0)

    @cached_property
    def projections(self) -> Weights:
        """v . (v - o), from the same moved vectors: (v' + c) . (v' - o')."""
        v2 = self._moved_values.square().sum(-1).repeat_interleave(self.group, dim=0)[:, None]
        along_v = (self._moved_values * self.centre).sum(-1).repeat_interleave(self.group, dim=0)[:, None]
        along_o = (self._moved_outputs * self.centre.repeat_interleave(self.group, dim=0)).sum(-1)[..., None]
        return v2 - self._products + along_v - along_o

    @cached_property
    def _moved_values(self) -> Float[Tensor, "kv_heads columns head_dim"]:
        return self.values - self.centre

    @cached_property
    def _moved_outputs(self) -> Float[Tensor, "heads queries head_dim"]:
        return self.outputs - self.centre.repeat_interleave(self.group, dim=0)

    @cached_property
    def _products(self) -> Weights:
        heads, rows, head_dim = self.outputs.shape
        kv_heads = self.values.shape[0]
        grouped = self._moved_outputs.reshape(kv_heads, self.group * rows, head_dim)
        return (grouped @ self._moved_values.mT).view(heads, rows, -1)


def chunks(layer: LayerCache, rows: Window) -> Iterator[Chunk]:
    """The columns of a dense layer from the first to the newest, as `rows` see them."""
    keys, values = layer.dense
    outputs = rows.outputs.float()
    kv_heads = keys.shape[0]
    centre = outputs.reshape(kv_heads, -1, outputs.shape[-1]).mean(dim=1, keepdim=True)
    lse = rows.lse[..., None]
    for columns, logits in logits_by_chunk(rows.queries, keys, rows.scaling):
        weights = (logits - lse).exp()
        seen = logits.masked_fill(logits == -torch.inf, 0)
        yield Chunk(weights, seen, values[:, columns].float(), outputs, centre)


def over_columns(layer: LayerCache, rows: Window, term: Callable[[Chunk], Columns]) -> Scores:
    """Evaluate `term` on every chunk and join the results along the tokens."""
    return torch.cat([term(chunk) for chunk in chunks(layer, rows)], dim=1)
