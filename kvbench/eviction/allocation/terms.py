"""What every allocation is told: the budget, what of it is spoken for, and which side of a disagreement to take."""

from dataclasses import dataclass
from typing import Literal

Variant = Literal["paper", "official"]


@dataclass(frozen=True)
class BudgetInfo:
    """Numbers of pairs per stored head.

    budget: what stays on average over heads and layers, protected pairs included. sink, recent: first and newest pairs,
    which always stay. tokens: pairs there are. even_heads: whether the heads of a layer are to keep the same number.
    stale_floor: whether the published mixture of heads takes its floor from the whole budget, not the layer's share.
    """

    budget: int
    sink: int
    recent: int
    tokens: int
    variant: Variant = "paper"
    even_heads: bool = True
    stale_floor: bool = False

    @property
    def protected(self) -> int:
        """Pairs that always stay."""
        return self.sink + self.recent

    @property
    def base(self) -> int:
        """Candidates that each stored head keeps on average."""
        return self.budget - self.protected

    @property
    def candidates(self) -> int:
        """Candidates that each stored head has."""
        return self.tokens - self.protected
