"""What a set of pairs costs when it goes at once, against the sum of what each costs alone.

CAOTE (Goel et al. 2025, https://arxiv.org/abs/2504.14051), equation 24: the joint error of a set is
|sum a (o - v)| / (1 - sum a) over the set. Scores that treat pairs as independent add up single errors (equation 6),
which knows nothing of errors that cancel or of weight that runs out.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from kvbench.cache.shapes import Kept
from kvbench.probes.of_cut import OfCut
from kvbench.probes.probe import Measured
from kvbench.probes.query import SATURATED, Query
from kvbench.probes.scene import At, Scene
from kvbench.run.plan import Cell

Errors = Float[Tensor, "heads"]


@dataclass(frozen=True)
class SetError(OfCut):
    """By query head, for the set that the cell evicts: `joint`, the error of all at once; `singles`, the sum of the
    errors of each alone; `ratio` = joint / singles, None where nothing is evicted; `weight`, the attention that goes.
    The joint error is None where the set has all of the weight.
    """

    at: At = "decode"
    name: str = "set_error"

    def measure(self, scene: Scene, cell: Cell) -> Iterator[Measured]:
        """Errors of every query head."""
        for layer, query, kept in self.looks(scene, cell):
            together, alone = joint(query, kept).tolist(), singles(query, kept).tolist()
            gone = (query.weights * ~query.staying(kept)).sum(dim=1).tolist()
            for head, (whole, sum_of, weight) in enumerate(zip(together, alone, gone, strict=True)):
                known = whole == whole
                ratio = whole / sum_of if known and sum_of else None
                found = (("joint", whole if known else None), ("singles", sum_of), ("ratio", ratio), ("weight", weight))
                for quantity, value in found:
                    yield Measured(layer=layer.index, quantity=quantity, value=value, head=head)


def joint(query: Query, kept: Kept) -> Errors:
    """Equation 24; NaN where the set has all of the weight."""
    gone = query.weights * ~query.staying(kept)
    weight = gone.sum(dim=1, keepdim=True)
    moved = weight * query.outputs - query.mixed(gone)
    left = 1 - weight
    return torch.where(left < SATURATED, torch.nan, moved / left.clamp_min(SATURATED)).norm(dim=1)


def singles(query: Query, kept: Kept) -> Errors:
    """The sum over the set of a / (1 - a) |v - o|, equation 6; a pair that has all the weight adds nothing."""
    evicted = ~query.staying(kept)[:, : query.evictable]
    parts = [(moved.norm(dim=2) * evicted[:, columns]).sum(dim=1) for columns, moved in query.moves()]
    return torch.stack(parts).sum(dim=0)
