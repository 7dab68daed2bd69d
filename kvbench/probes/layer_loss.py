"""The layer attention output loss after an eviction, and LAVa's bound on it.

LAVa (Shen et al. 2025, https://arxiv.org/abs/2509.09754), Lemma 1 (equation 3), Theorem 1 (equation 4) and Table 14.
The paper does not say which query its table is about: the last one of the prompt by default.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from kvbench.cache.shapes import Kept
from kvbench.probes.probe import EvictionProbe, Measured
from kvbench.probes.query import Query
from kvbench.probes.scene import At, Scene
from kvbench.run.plan import Cell


@dataclass(frozen=True)
class LayerLoss(EvictionProbe):
    """By layer: `loss` = |y - y'|_1 of the layer's output y = W concat_h(o_h) without the evicted pairs, the weights of
    the others scaled to sum to 1 again; `relative` = loss / |y|_1; `bound` = Theorem 1.
    """

    at: At = "prompt"
    name: str = "layer_loss"

    def measure(self, scene: Scene, cell: Cell) -> Iterator[Measured]:
        for layer, query, kept in self.evictions(scene, cell):
            matrix = scene.projection(layer).double()
            size = float((matrix @ query.outputs.flatten()).abs().sum())
            change = loss(query, kept, matrix)
            relative = change / size if size else None
            for quantity, value in (("loss", change), ("relative", relative), ("bound", bound(query, kept, matrix))):
                yield Measured(layer=layer.index, quantity=quantity, value=value)


def loss(query: Query, kept: Kept, matrix: Float[Tensor, "hidden width"]) -> float:
    """Lemma 1 with p = 1: |W concat_h(o_h - o'_h)|_1."""
    return float((matrix @ (query.outputs - query.without(kept)).flatten()).abs().sum())


def bound(query: Query, kept: Kept, matrix: Float[Tensor, "hidden width"]) -> float:
    """Theorem 1: 2 C sum_h V_h (evicted weight of h), V_h the largest |v|_1 of a token and C the largest sum of
    |W| over a column.
    """
    evicted = (query.weights * ~query.staying(kept)).sum(dim=1)
    largest = query.wide_values.abs().sum(dim=2).amax(dim=1).repeat_interleave(query.group)
    return float(2 * matrix.abs().sum(dim=0).amax() * (largest * evicted).sum())
