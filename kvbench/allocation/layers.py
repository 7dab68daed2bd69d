"""Layer allocation: candidates that each stored head of a layer keeps on average, integers with an exact total."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class UniformLayers:
    """Every layer the same: SnapKV, H2O, TOVA, StreamingLLM."""

    kind: Literal["uniform"] = "uniform"

    def __call__(self, base: int, layers: int) -> tuple[int, ...]:
        """Split `base` candidates per head and layer over `layers` layers."""
        return (base,) * layers


LayerAllocation = UniformLayers
