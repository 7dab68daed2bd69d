"""How much each head needs its pairs: a map of layers and heads.

KVzip (Kim et al. 2025, https://arxiv.org/abs/2505.23416), head-level eviction: the score of a head is that of its
best pair. With score=kvzip the map is the published one; any other score gives its own.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from kvbench.probes.probe import Measured, Probe
from kvbench.probes.scene import Scene
from kvbench.run.plan import Cell


@dataclass(frozen=True)
class HeadScores(Probe):
    """By cache head: the largest, or the mean, of the shaped scores of its candidates."""

    merge: Literal["max", "mean"] = "max"
    name: str = "head_scores"
    reads_budget: ClassVar[bool] = False
    by: ClassVar[tuple[str, ...]] = ("layer", "head")
    across: ClassVar[str] = "head"

    def measure(self, scene: Scene, cell: Cell) -> Iterator[Measured]:
        """The score of every cache head; None for one without candidates."""
        for layer, ranking in zip(scene.layers, scene.rank(cell), strict=True):
            values: list[float | None] = [None] * ranking.scores.shape[0]
            if ranking.candidates:
                values = (ranking.scores.amax(dim=1) if self.merge == "max" else ranking.scores.mean(dim=1)).tolist()
            for head, value in enumerate(values):
                yield Measured(layer=layer.index, quantity=self.merge, value=value, head=head)
