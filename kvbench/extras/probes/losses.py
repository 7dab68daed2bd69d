"""Effect of an eviction on one query of every layer: the probes `eviction_error`, `layer_loss` and `set_error`."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import isnan
from typing import Annotated, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from kvbench.cache.kv_cache import LayerCache
from kvbench.cache.shapes import Kept
from kvbench.eviction.evict import cache_heads
from kvbench.extras.probes.probe import Measured, Probe
from kvbench.extras.probes.query import SATURATED, Output, Query
from kvbench.extras.probes.scene import At, Scene
from kvbench.run.cell import Cell
from kvbench.support.annotations import Help

Matrix = Float[Tensor, "hidden width"]
"""The output projection of a layer."""
Errors = Float[Tensor, "heads"]


@dataclass(frozen=True)
class EvictionProbe(Probe):
    """A probe of what each cell keeps, not of its score."""

    judges_scores: ClassVar[bool] = False
    by: ClassVar[tuple[str, ...]] = ("layer", "quantity")

    def evictions(self, scene: Scene, cell: Cell, at: At) -> Iterator[tuple[LayerCache, Query, Kept]]:
        """Yield every layer, its query, and what the cell keeps of it."""
        for layer, kept in zip(scene.layers, scene.decide(cell).kept, strict=True):
            yield layer, scene.query(layer, at), kept


@dataclass(frozen=True)
class EvictionError(EvictionProbe):
    """The share of the true eviction error that belongs to the evicted pairs, by cache head.

    The error of a pair is as in OBCache's Figure 2 (`query.removal_errors`): it is removed alone, at the first decoded
    token. `total`: the sum over all pairs; `lost`: over the evicted ones; `lost_share` = lost /
    total; `best_share`: the smallest share that as many pairs of that head can have. Recall counts the best k pairs
    alike; here each counts by its error.

    output: the change of the `attention` output (|o' - o|^2 over the query heads that read the pair) or of the output
    of the `layer`. positions: one more row per pair, `error` with its position.
    """

    output: Annotated[
        Output, Help("attention: the outputs of the query heads that read the pair; layer: the output of the layer")
    ] = "attention"
    positions: Annotated[bool, Help("true: one more row per KV pair, with its error and position")] = False
    name: str = "eviction_error"

    def measure(self, scene: Scene, cell: Cell) -> Iterator[Measured]:
        """Errors and their shares; a share is None if no pair has an error."""
        for layer, kept in zip(scene.layers, scene.decide(cell).kept, strict=True):
            errors = scene.errors(layer, cache_heads(layer, cell.policy), self.output)
            evicted = ~kept.to(errors.device)
            totals, lost = errors.sum(dim=1).tolist(), (errors * evicted).sum(dim=1).tolist()
            ordered = errors.sort(dim=1).values
            for head, (total, lost_error) in enumerate(zip(totals, lost, strict=True)):
                least = float(ordered[head, : int(evicted[head].sum())].sum())
                shares = (lost_error / total, least / total) if total else (None, None)
                values = {"total": total, "lost": lost_error, "lost_share": shares[0], "best_share": shares[1]}
                for quantity, value in values.items():
                    yield Measured(layer=layer.index, quantity=quantity, value=value, head=head)
            if self.positions:
                for head, row in enumerate(errors.tolist()):
                    for position, value in enumerate(row):
                        yield Measured(layer=layer.index, quantity="error", value=value, head=head, position=position)


@dataclass(frozen=True)
class LayerLoss(EvictionProbe):
    """LAVa (Shen et al. 2025, https://arxiv.org/abs/2509.09754), Table 14, by layer.

    `loss` = |y - y'|_1 of the layer's output y = W concat_h(o_h) without the evicted pairs, the weights of the others
    scaled to sum to 1 again; `relative` = loss / |y|_1; `bound` = Theorem 1. The paper does not say which query its
    table is about: the last one of the prompt by default.
    """

    at: Annotated[At, Help("the last query of the prompt; decode: the query of the first decoded token")] = "prompt"
    name: str = "layer_loss"

    def measure(self, scene: Scene, cell: Cell) -> Iterator[Measured]:
        for layer, query, kept in self.evictions(scene, cell, self.at):
            matrix = scene.projection(layer).double()
            size = float((matrix @ query.outputs.flatten()).abs().sum())
            change = loss(query, kept, matrix)
            relative = change / size if size else None
            for quantity, value in (("loss", change), ("relative", relative), ("bound", bound(query, kept, matrix))):
                yield Measured(layer=layer.index, quantity=quantity, value=value)


def loss(query: Query, kept: Kept, matrix: Matrix) -> float:
    """Lemma 1 (equation 3) with p = 1: |W concat_h(o_h - o'_h)|_1."""
    return float((matrix @ (query.outputs - query.without(kept)).flatten()).abs().sum())


def bound(query: Query, kept: Kept, matrix: Matrix) -> float:
    """Theorem 1 (equation 4): 2 C sum_h V_h (evicted weight of h), V_h the largest |v|_1 of a token and C the largest
    sum of |W| over a column.
    """
    evicted = (query.weights * ~query.staying(kept)).sum(dim=1)
    largest = query.wide_values.abs().sum(dim=2).amax(dim=1).repeat_interleave(query.group)
    return float(2 * matrix.abs().sum(dim=0).amax() * (largest * evicted).sum())


@dataclass(frozen=True)
class SetError(EvictionProbe):
    """The error of evicting a set of pairs at once, against the sum of their errors alone, by query head.

    CAOTE (Goel et al. 2025, https://arxiv.org/abs/2504.14051): scores that treat pairs as independent add up single
    errors (equation 6), which ignores errors that cancel and weight that runs out. `joint`: the error of all evicted
    pairs at once, None where they have all of the weight; `singles`: the sum of the errors of each alone; `ratio` =
    joint / singles, None if nothing is evicted; `weight`: the evicted attention.
    """

    at: Annotated[At, Help("the query of the first decoded token; prompt: the last one of the prompt")] = "decode"
    name: str = "set_error"

    def measure(self, scene: Scene, cell: Cell) -> Iterator[Measured]:
        for layer, query, kept in self.evictions(scene, cell, self.at):
            weights = (query.weights * ~query.staying(kept)).sum(dim=1)
            errors = zip(joint(query, kept).tolist(), singles(query, kept).tolist(), weights.tolist(), strict=True)
            for head, (joint_error, sum_of_singles, weight) in enumerate(errors):
                together = None if isnan(joint_error) else joint_error
                ratio = together / sum_of_singles if together is not None and sum_of_singles else None
                values = (("joint", together), ("singles", sum_of_singles), ("ratio", ratio), ("weight", weight))
                for quantity, value in values:
                    yield Measured(layer=layer.index, quantity=quantity, value=value, head=head)


def joint(query: Query, kept: Kept) -> Errors:
    """Equation 24: |sum a (o - v)| / (1 - sum a) over the set; NaN if the set has all of the weight."""
    evicted = query.weights * ~query.staying(kept)
    weight = evicted.sum(dim=1, keepdim=True)
    change = weight * query.outputs - query.mixed(evicted)
    rest = 1 - weight
    return torch.where(rest < SATURATED, torch.nan, change / rest.clamp_min(SATURATED)).norm(dim=1)


def singles(query: Query, kept: Kept) -> Errors:
    """Return the sum over the set of a / (1 - a) |v - o|, equation 6; a pair that has all the weight adds nothing."""
    evicted = ~query.staying(kept)[:, : query.evictable]
    parts = [(moved.norm(dim=2) * evicted[:, columns]).sum(dim=1) for columns, moved in query.moves()]
    return torch.stack(parts).sum(dim=0)
