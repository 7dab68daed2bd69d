"""FastCAOTE: CAOTE with the plain mean of the cached values as its centre.

CAOTE (Goel et al. 2025, https://arxiv.org/abs/2504.14051), equation 8.
"""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from kvbench.eviction.scores.caote import Caote, Centres, Values


@dataclass(frozen=True)
class FastCaote(Caote):
    """h_j / (1 - h_j) |v_j - x| with h the host score over its sum and x the mean of the values."""

    name: str = "fastcaote"

    def centre(self, share: Float[Tensor, "cache_heads tokens"], values: Values) -> Centres:
        """The mean of the values of each KV head."""
        return values.float().mean(dim=1).repeat_interleave(share.shape[0] // values.shape[0], dim=0)
