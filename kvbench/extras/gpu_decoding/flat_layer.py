"""Layers of a flat batch: all prefixes in one store, and dense tails."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kvbench.cache.attention import AttentionParams, capped
from kvbench.cache.kernels.ragged_decode import merged
from kvbench.models.decode.batch import RaggedLayer


@dataclass(frozen=True)
class FlatLayer(RaggedLayer):
    """A layer for a kernel of `ragged_decode`: prefixes in a flat store, and dense tails, in the same order. No runs.

    Segment s owns the pairs starts[s] to starts[s] + lengths[s]; `longest` is at least the largest of `lengths`.
    """

    keys: Float[Tensor, "pairs head_dim"]
    values: Float[Tensor, "pairs head_dim"]
    starts: Int[Tensor, "segments"]
    lengths: Int[Tensor, "segments"]
    longest: int
    tail_keys: Float[Tensor, "segments max_new_tokens head_dim"]
    tail_values: Float[Tensor, "segments max_new_tokens head_dim"]

    @property
    def device(self) -> torch.device:
        """Where its pairs lie."""
        return self.keys.device

    def prefix(
        self, decode: Callable[..., Any], rows: Float[Tensor, "segments rows head_dim"], rule: AttentionParams
    ) -> tuple[Float[Tensor, "segments rows head_dim"], Float[Tensor, "segments rows"]]:
        """Return outputs and log-sum-exp over the prefixes, by the kernel."""
        options = {"softcap": rule.softcap, "longest": self.longest}
        return decode(rows, self.keys, self.values, self.starts, self.lengths, rule.scaling, **options)

    def attend(
        self,
        decode: Callable[..., Any],
        rows: Float[Tensor, "segments rows head_dim"],
        tail: int,
        hidden_tail: Bool[Tensor, "rows tail"] | None,
        rule: AttentionParams,
        sinks: Float[Tensor, "segments rows"] | None,
    ) -> Float[Tensor, "segments rows head_dim"]:
        """Return one softmax over the prefixes, by the kernel, and over the `tail` newer tokens, in PyTorch.

        The two are merged by log-sum-exp in float32, with the sink of each row. Outputs have the dtype of the rows.
        """
        outputs, lse = self.prefix(decode, rows, rule)
        logits = capped(rows.float() @ self.tail_keys[:, :tail].float().mT * rule.scaling, rule.softcap)
        if hidden_tail is not None:
            logits = logits.masked_fill(hidden_tail, -torch.inf)
        newer = logits.softmax(dim=-1) @ self.tail_values[:, :tail].float()
        joined, total = merged(torch.stack((outputs.float(), newer)), torch.stack((lse, logits.logsumexp(dim=-1))))
        if sinks is not None:
            joined = joined * (total - torch.logaddexp(total, sinks.float())).exp()[..., None]
        return joined.to(rows.dtype)


def flat_layer(
    keys: Float[Tensor, "pairs head_dim"],
    values: Float[Tensor, "pairs head_dim"],
    starts: Int[Tensor, "segments"],
    lengths: Int[Tensor, "segments"],
    longest: int,
    *tails: Float[Tensor, "segments max_new_tokens head_dim"],
) -> FlatLayer:
    """Return a layer over these stores. tails: of keys and of values."""
    pair_bytes = 2 * keys.shape[1] * keys.itemsize
    return FlatLayer(None, None, len(lengths), pair_bytes, (), None, keys, values, starts, lengths, longest, *tails)


def placed(
    max_new_tokens: int, like: Float[Tensor, "any head_dim"], lengths: Int[Tensor, "layers segments"]
) -> tuple[list[Float[Tensor, "pairs head_dim"]], list[FlatLayer]]:
    """Return memory of their own for layers: where their keys and values are to be written, and the layers over it.

    lengths: of their segments, on the host. like: such pairs.
    """
    by_layer = lengths.sum(dim=1).tolist()
    stores = [like.new_empty(sum(by_layer), like.shape[1]) for _ in range(2)]
    bounds = (part.to(like.device, non_blocking=True) for part in (lengths.cumsum(1) - lengths, lengths.int()))
    tails = like.new_zeros(2, *lengths.shape, max_new_tokens, like.shape[1])
    parts = (store.split(by_layer) for store in stores)
    fields = zip(*parts, *bounds, lengths.amax(dim=1).tolist(), *tails, strict=True)
    return stores, [flat_layer(*each) for each in fields]
