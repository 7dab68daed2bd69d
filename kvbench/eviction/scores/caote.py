"""CAOTE: how much the output of a head changes if a pair is evicted, for any score that can be read as attention.

CAOTE (Goel et al. 2025, https://arxiv.org/abs/2504.14051), equations 6 to 8: the host score of every KV pair,
pooled and divided by its sum, stands for the attention weight. Unsquared, which is the form the paper proves;
equation 7 squares the norm only.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from kvbench.cache.kv_cache import LayerCache
from kvbench.cache.shapes import Ranked
from kvbench.eviction.pooling import Weight
from kvbench.eviction.scores.host import OverHost

Values = Float[Tensor, "kv_heads tokens head_dim"]
Centres = Float[Tensor, "cache_heads head_dim"]
COLUMN_CHUNK = 4096
"""Columns whose distances are taken at a time."""
RESOLVED = 1e-12
"""The smallest 1 - h that float64 distinguishes from 0."""


@dataclass(frozen=True)
class Caote(OverHost):
    """h_j / (1 - h_j) |v_j - x| with h the host score over its sum and x = sum_j h_j v_j; `squared`: |v_j - x|^2.

    Raises UserError for a host that can be negative, or that is a CAOTE itself. A pair that has all of the mass gets
    the largest possible change of the output, because no other pair is left to compare with.
    """

    squared: bool = False
    name: str = "caote"
    whole: ClassVar[bool] = True

    def weigh(self, layer: LayerCache, recent: int) -> Weight | None:
        return self.host.weigh(layer, 0)

    def refine(self, shaped: Ranked, layer: LayerCache) -> Ranked:
        host = self.host.refine(shaped, layer).double()
        mass = host.sum(dim=1, keepdim=True)
        share = torch.where(mass > 0, host / mass, 0)
        left = torch.where(mass > 0, (mass - host) / mass, 1)
        distances, bound = _distances(layer.dense[1], self.centre(share, layer.dense[1]))
        if self.squared:
            distances, bound = distances.square(), bound.square()
        moved = (share / left.clamp_min(RESOLVED)) * distances
        return torch.where(left < RESOLVED, moved.maximum(bound), moved).float()

    def centre(self, share: Float[Tensor, "cache_heads tokens"], values: Values) -> Centres:
        """The reference value of each head: the mean of its values, weighted by the host."""
        group = share.shape[0] // values.shape[0]
        grouped = share.float().view(values.shape[0], group, -1)
        return (grouped @ values.float()).view(share.shape[0], -1)


@dataclass(frozen=True)
class FastCaote(Caote):
    """h_j / (1 - h_j) |v_j - x| with h the host score over its sum and x the mean of the values."""

    name: str = "fastcaote"

    def centre(self, share: Float[Tensor, "cache_heads tokens"], values: Values) -> Centres:
        return values.float().mean(dim=1).repeat_interleave(share.shape[0] // values.shape[0], dim=0)


def _distances(values: Values, centres: Centres) -> tuple[Ranked, Ranked]:
    """|v_j - x|, and |v_j| plus the largest norm of a value of the head, one row per cache head."""
    group = centres.shape[0] // values.shape[0]
    apart, norms = [], []
    for part in values.split(COLUMN_CHUNK, dim=1):
        wide = part.float().repeat_interleave(group, dim=0)
        apart.append((wide - centres[:, None]).norm(dim=-1))
        norms.append(wide.norm(dim=-1))
    length = torch.cat(norms, dim=1)
    return torch.cat(apart, dim=1), length + length.amax(dim=1, keepdim=True)
