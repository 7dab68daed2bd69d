"""The layer attention output loss after a cut, and LAVa's bound on it.

LAVa (Shen et al. 2025, https://arxiv.org/abs/2509.09754), Lemma 1 (equation 3), Theorem 1 (equation 4) and Table 14.
The paper does not say at which query its table looks: the last one of the prompt by default.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from kvbench.cache.shapes import Kept
from kvbench.probes.of_cut import OfCut
from kvbench.probes.probe import Measured
from kvbench.probes.query import Query
from kvbench.probes.scene import At, Scene
from kvbench.run.plan import Cell


@dataclass(frozen=True)
class LayerLoss(OfCut):
    """By layer: `loss` = |y - y'|_1 of the layer's output y = W concat_h(o_h) with the evicted pairs gone and the
    weights of the others scaled to their sum again; `relative` = loss / |y|_1; `bound` = Theorem 1.
    """

    at: At = "prompt"
    name: str = "layer_loss"

    def measure(self, scene: Scene, cell: Cell) -> Iterator[Measured]:
        """Loss and bound of every layer."""
        for layer, query, kept in self.looks(scene, cell):
            matrix = scene.projection(layer).double()
            whole = float((matrix @ query.outputs.flatten()).abs().sum())
            moved = loss(query, kept, matrix)
            relative = moved / whole if whole else None
            for quantity, value in (("loss", moved), ("relative", relative), ("bound", bound(query, kept, matrix))):
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
