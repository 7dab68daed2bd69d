"""Scores of a cell, whatever it keeps: the probes `head_scores` and `rank_correlation`."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from scipy.stats import rankdata

from kvbench.eviction.evict import cache_heads, check_host
from kvbench.eviction.scores.obcache import ExactRemoval
from kvbench.eviction.scores.score import Score
from kvbench.extras.probes.probe import Measured, Probe
from kvbench.extras.probes.scene import Scene
from kvbench.run.cell import Cell
from kvbench.support.annotations import Help


@dataclass(frozen=True)
class HeadScores(Probe):
    """How much each head needs its pairs: the largest, or the mean, of the shaped scores of its candidates.

    With score=kvzip it is the published map of KVzip's head-level eviction (Kim et al. 2025,
    https://arxiv.org/abs/2505.23416), where the score of a head is its best pair's.
    """

    merge: Annotated[Literal["max", "mean"], Help("the largest score of a head's KV pairs; mean: their mean")] = "max"
    name: str = "head_scores"
    reads_budget: ClassVar[bool] = False
    by: ClassVar[tuple[str, ...]] = ("layer", "head")
    across: ClassVar[str] = "head"

    def measure(self, scene: Scene, cell: Cell) -> Iterator[Measured]:
        """Yield the score of every cache head; None for one without candidates."""
        for layer, ranking in zip(scene.layers, scene.rank(cell), strict=True):
            values: list[float | None] = [None] * ranking.scores.shape[0]
            if ranking.candidates:
                values = (ranking.scores.amax(dim=1) if self.merge == "max" else ranking.scores.mean(dim=1)).tolist()
            for head, value in enumerate(values):
                yield Measured(layer=layer.index, quantity=self.merge, value=value, head=head)


@dataclass(frozen=True)
class RankCorrelation(Probe):
    """Spearman's rho of two scores over the candidates of a cache head, both computed and shaped as the policy says.

    CAOTE (Goel et al. 2025, https://arxiv.org/abs/2504.14051), Table 7, compares CAOTE with FastCAOTE; here any score
    with any other, by default with the exact change of the output when a pair is removed.

    against: the other score, or None for the true error of the first decoded token. Undefined (no number) if all
    scores of either are equal or fewer than two candidates are left.
    """

    against: Annotated[
        Score | None, Help("any other score (Table 7: caote), or null for the true error of the first decoded token")
    ] = field(default_factory=ExactRemoval)
    name: str = "rank_correlation"
    reads_budget: ClassVar[bool] = False
    by: ClassVar[tuple[str, ...]] = ("layer",)
    across: ClassVar[str] = "layer"
    __pydantic_config__: ClassVar[dict[str, Any]] = {"arbitrary_types_allowed": True}

    def judged(self, cell: Cell) -> Cell:
        """Raise UserError also if the policy cannot host the other score."""
        if self.against is not None:
            check_host(cell.policy, self.against)
        return super().judged(cell)

    def read_for(self, cell: Cell) -> tuple[Cell, ...]:
        return (cell,) if self.against is None else (cell, cell.with_method(score=self.against))

    def measure(self, scene: Scene, cell: Cell) -> Iterator[Measured]:
        others = [] if self.against is None else scene.rank(self.read_for(cell)[1])
        for place, (layer, ranking) in enumerate(zip(scene.layers, scene.rank(cell), strict=True)):
            if self.against is None:
                errors = scene.errors(layer, cache_heads(layer, cell.policy))
                other = errors[:, ranking.first : ranking.first + ranking.candidates]
            else:
                other = others[place].scores
            pairs = zip(ranking.scores.double().cpu().numpy(), other.double().cpu().numpy(), strict=True)
            for head, (ours, theirs) in enumerate(pairs):
                yield Measured(layer=layer.index, quantity="spearman", value=spearman(ours, theirs), head=head)


def spearman(first: np.ndarray, second: np.ndarray) -> float | None:
    """Pearson's correlation of the ranks, equal numbers sharing the mean of theirs; None if it is undefined."""
    if len(first) < 2:
        return None
    ranks = [rankdata(values) - (len(first) + 1) / 2 for values in (first, second)]
    sizes = [float(np.sqrt((rank**2).sum())) for rank in ranks]
    return float(ranks[0] @ ranks[1]) / (sizes[0] * sizes[1]) if all(sizes) else None
