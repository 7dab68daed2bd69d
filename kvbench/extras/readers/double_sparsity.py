"""Double Sparsity: pairs by a few channels of their keys."""

from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Literal

import torch

from kvbench.eviction.budget import FractionBudget
from kvbench.extras.readers.reader import Keys, Queries
from kvbench.extras.readers.top import PageScores, TopReader
from kvbench.support.annotations import Help
from kvbench.support.errors import UserError


@dataclass(frozen=True)
class DoubleSparsity(TopReader):
    """sum over the label channels c of q_c k_c: the logit, as far as these channels make it.

    Double Sparsity (Yang et al. 2024, https://arxiv.org/abs/2408.07092, algorithm 1) finds the label channels of a head
    on a calibration text, offline. Here they come from the kept keys of the prompt, as they are cached (rotated):

        prompt_keys  the channels with the largest mean |k_c|, the same for all queries of a KV head; the statistic `k`
                     of the paper's code, which takes it before the rotation, on its calibration text
        query_keys   the channels with the largest |q_c| times mean |k_c|, chosen anew by each query, as SparQ (Ribar et
                     al. 2023, https://arxiv.org/abs/2312.04985) chooses them by |q_c|

    The label channels of all pairs are read to choose; they are not quantised.
    """

    channels: Annotated[
        int | float, Help("label channels of a head: a number (8), or a fraction of its channels (0.0625)")
    ] = 0.0625
    variant: Annotated[
        Literal["prompt_keys", "query_keys"],
        Help("what chooses label channels: |k| of the prompt, or that times |q|; the paper: a calibration text"),
    ] = "prompt_keys"
    name: str = "double_sparsity"

    def __post_init__(self) -> None:
        super().__post_init__()
        is_number = isinstance(self.channels, int)
        if isinstance(self.channels, bool) or not (self.channels >= 1 if is_number else 0 < self.channels <= 1):
            raise UserError(
                f"reader.channels={self.channels}: allowed: a number of channels, 1 or more (8), or a fraction of "
                "those of a head in (0, 1] with a dot (0.0625)"
            )

    def channels_of(self, head_dim: int) -> int:
        """Return how many label channels a head has."""
        if isinstance(self.channels, int):
            return min(self.channels, head_dim)
        return FractionBudget(Decimal(str(self.channels))).of(head_dim)

    def scores(self, queries: Queries, keys: Keys, prefix: int) -> PageScores:
        importance = keys[:, : prefix or None].abs().mean(dim=1, keepdim=True).expand(queries.shape)
        if self.variant == "query_keys":
            importance = importance * queries.abs()
        order = importance.argsort(dim=-1, descending=True, stable=True)
        labels = order[..., : self.channels_of(queries.shape[2])]
        is_label = torch.zeros_like(queries, dtype=torch.bool).scatter_(-1, labels, True)
        return queries.masked_fill(~is_label, 0) @ keys.mT

    def index_of(self, held: int, head_dim: int, group: int) -> int:
        sets = group if self.variant == "query_keys" else 1
        return held * min(head_dim, sets * self.channels_of(head_dim))
