"""What a cut does to one query of every layer: what probes derive from that look at what was evicted."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from kvbench.cache.kv_cache import LayerCache
from kvbench.cache.shapes import Kept
from kvbench.probes.probe import Probe
from kvbench.probes.query import Query
from kvbench.probes.scene import At, Scene, check_at
from kvbench.run.plan import Cell


@dataclass(frozen=True)
class OfCut(Probe):
    """at: which query is looked at. Raises ValueError for another one."""

    at: At
    judges_scores: ClassVar[bool] = False
    by: ClassVar[tuple[str, ...]] = ("layer", "quantity")

    def __post_init__(self) -> None:
        check_at(self.at, "probe.at")

    def looks(self, scene: Scene, cell: Cell) -> Iterator[tuple[LayerCache, Query, Kept]]:
        """Every layer, its query, and what the cell keeps of it."""
        for layer, kept in zip(scene.layers, scene.decide(cell).kept, strict=True):
            yield layer, scene.query(layer, self.at), kept
