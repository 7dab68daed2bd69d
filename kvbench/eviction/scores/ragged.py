"""Inputs of a score for one decoding step over several cells, which kernels score at once."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kvbench.cache.kernels.choice import kernel_module
from kvbench.cache.kernels.ragged_decode import FlatPairs, Segments

Slots = Float[Tensor, "segments #slots"]
Planes = Float[Tensor, "planes segments slots"]
"""With and without pooling, or one of them."""
RowTerm = Literal[
    "nothing",
    "attn",
    "attn_squares",
    "attn_of_others",
    "attn_squares_of_others",
    "logit",
    "obcache_value",
    "obcache_key",
    "obcache_joint",
    "exact_removal",
    "exact_zeroed",
]
"""As in `column_sums`, with a single row. `of_others`: the pair of the token itself counts 0. `logit`: the scaled
logit of the older pairs, or of a lone one, and -inf for all others. `nothing`: 0."""
ROW_TERMS: tuple[RowTerm, ...] = get_args(RowTerm)
Merge = Literal["sum", "mean", "max", "none"]
MERGES: tuple[Merge, ...] = get_args(Merge)
"""How the query heads of a segment are merged; `none`: a segment has one."""


@dataclass(frozen=True)
class RaggedHeads:
    """Heads of different lengths, the pair of the new token included.

    index: of the layer. keys, values: of all cells, of which `segments` says where each head lies. owners: the
    cell and the cache head of each. lengths: the pairs of each, on the host. group: query heads per cache head. merge:
    how they are merged. recent: newest pairs that are always kept. newest: the position of the new token, one for all
    heads or one for each. memo: what a score keeps for the next tokens, until lengths change.
    """

    index: int
    keys: FlatPairs
    values: FlatPairs
    segments: Segments
    owners: Sequence[tuple[int, int]]
    lengths: Sequence[int]
    group: int
    merge: Merge
    recent: int
    newest: Int[Tensor, "_"]
    memo: dict[Hashable, Any] = field(default_factory=dict)

    def once(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Return the result of the first call of `make` for this key."""
        if key not in self.memo:
            self.memo[key] = make()
        return self.memo[key]

    def empty(self) -> Slots:
        """Room for a number per slot of every head."""
        return torch.empty(len(self.lengths), self.segments.longest, device=self.keys.device)

    def weighed(self, scores: Planes | None, states: FlatPairs, power: int, largest: int | None, out: Planes) -> Planes:
        """`out`: scores (None: -1) times the L1 or L2 norm of every key or value; with `largest` times the largest one
        of a head without that many of its newest pairs.
        """
        return kernel_module("norms").weighed(scores, states, self.segments, power, largest, out)
