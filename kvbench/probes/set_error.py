"""The error of evicting a set of KV pairs at once, against the sum of the errors of each alone.

CAOTE (Goel et al. 2025, https://arxiv.org/abs/2504.14051), equation 24: the joint error of a set is
|sum a (o - v)| / (1 - sum a) over the set. Scores that treat pairs as independent add up single errors (equation 6),
which ignores errors that cancel and weight that runs out.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import isnan

import torch
from jaxtyping import Float
from torch import Tensor

from kvbench.cache.shapes import Kept
from kvbench.probes.probe import EvictionProbe, Measured
from kvbench.probes.query import SATURATED, Query
from kvbench.probes.scene import At, Scene
from kvbench.run.plan import Cell

Errors = Float[Tensor, "heads"]


@dataclass(frozen=True)
class SetError(EvictionProbe):
    """By query head, for the set that the cell evicts: `joint`, the error of all at once; `singles`, the sum of the
    errors of each alone; `ratio` = joint / singles, None if nothing is evicted; `weight`, the evicted attention.
    The joint error is None where the set has all of the weight.
    """

    at: At = "decode"
    name: str = "set_error"

    def measure(self, scene: Scene, cell: Cell) -> Iterator[Measured]:
        for layer, query, kept in self.evictions(scene, cell):
            weights = (query.weights * ~query.staying(kept)).sum(dim=1)
            errors = zip(joint(query, kept).tolist(), singles(query, kept).tolist(), weights.tolist(), strict=True)
            for head, (joint_error, sum_of_singles, weight) in enumerate(errors):
                together = None if isnan(joint_error) else joint_error
                ratio = together / sum_of_singles if together is not None and sum_of_singles else None
                values = (("joint", together), ("singles", sum_of_singles), ("ratio", ratio), ("weight", weight))
                for quantity, value in values:
                    yield Measured(layer=layer.index, quantity=quantity, value=value, head=head)


def joint(query: Query, kept: Kept) -> Errors:
    """Equation 24; NaN if the set has all of the weight."""
    evicted = query.weights * ~query.staying(kept)
    weight = evicted.sum(dim=1, keepdim=True)
    change = weight * query.outputs - query.mixed(evicted)
    rest = 1 - weight
    return torch.where(rest < SATURATED, torch.nan, change / rest.clamp_min(SATURATED)).norm(dim=1)


def singles(query: Query, kept: Kept) -> Errors:
    """The sum over the set of a / (1 - a) |v - o|, equation 6; a pair that has all the weight adds nothing."""
    evicted = ~query.staying(kept)[:, : query.evictable]
    parts = [(moved.norm(dim=2) * evicted[:, columns]).sum(dim=1) for columns, moved in query.moves()]
    return torch.stack(parts).sum(dim=0)
