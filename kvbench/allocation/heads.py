"""Head allocation: candidates that each stored head of one layer keeps, integers with an exact total."""

from dataclasses import dataclass
from typing import Literal

from kvbench.shapes import Ranked


@dataclass(frozen=True)
class UniformHeads:
    """Every head of the layer the same: SnapKV, H2O, TOVA per head, StreamingLLM."""

    kind: Literal["uniform"] = "uniform"

    def __call__(self, ranked: Ranked, candidates: int) -> tuple[int, ...]:
        """Give `candidates` pairs to each of the heads whose shaped scores are `ranked`."""
        return (candidates,) * ranked.shape[0]


HeadAllocation = UniformHeads
