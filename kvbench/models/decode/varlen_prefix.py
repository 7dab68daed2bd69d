"""The prefixes of a tile's layer as one flat store that a kernel attends to, and how its tails join in."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kvbench.cache.attention import Rule, capped
from kvbench.cache.kernels.ragged_decode import merged


@dataclass(frozen=True)
class VarlenPrefix:
    """Segment s owns the pairs starts[s] to starts[s] + lengths[s]; they lie side by side in the order of the tails.

    longest: the largest of `lengths`, known without asking the device.
    """

    keys: Float[Tensor, "pairs head_dim"]
    values: Float[Tensor, "pairs head_dim"]
    starts: Int[Tensor, "segments"]
    lengths: Int[Tensor, "segments"]
    longest: int

    def attend(
        self,
        decode: Callable[..., Any],
        rows: Float[Tensor, "segments rows head_dim"],
        tail_keys: Float[Tensor, "segments tail head_dim"],
        tail_values: Float[Tensor, "segments tail head_dim"],
        hidden_tail: Bool[Tensor, "rows tail"] | None,
        rule: Rule,
        sinks: Float[Tensor, "segments rows"] | None,
    ) -> Float[Tensor, "segments rows head_dim"]:
        """One softmax over the prefixes, by a kernel of `ragged_decode`, and the tails, which are few and written out.

        Joined by log-sum-exp in float32; a row's sink takes its share. In the type of the rows.
        """
        options = {"softcap": rule.softcap, "longest": self.longest}
        outputs, lse = decode(rows, self.keys, self.values, self.starts, self.lengths, rule.scaling, **options)
        logits = capped(rows.float() @ tail_keys.float().mT * rule.scaling, rule.softcap)
        if hidden_tail is not None:
            logits = logits.masked_fill(hidden_tail, -torch.inf)
        behind = logits.softmax(dim=-1) @ tail_values.float()
        whole, total = merged(torch.stack((outputs.float(), behind)), torch.stack((lse, logits.logsumexp(dim=-1))))
        if sinks is not None:
            whole = whole * (total - torch.logaddexp(total, sinks.float())).exp()[..., None]
        return whole.to(rows.dtype)


def flat_prefix(keys: Sequence[Tensor], values: Sequence[Tensor]) -> VarlenPrefix:
    """The prefixes of all segments, a copy of each one after the other."""
    lengths = [len(part) for part in keys]
    held = torch.tensor(lengths, device=keys[0].device)
    return VarlenPrefix(torch.cat(list(keys)), torch.cat(list(values)), held.cumsum(0) - held, held, max(lengths))
