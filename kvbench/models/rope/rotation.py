"""The rotation of queries by their position, undone and averaged, with the model's own functions.

Queries come rotated from transformers. A rotation is undone by the model's `apply_rotary_pos_emb` with the sine
negated, whatever its convention (halves or neighbours, all of a head or a part of it). Whether that is right is tried
out: the same token alone at several positions has the same queries in every layer, but for their rotation.
"""

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from kvbench.cache.future_queries import FutureQueries, FutureQueryStats
from kvbench.models.cpu.alone import alone
from kvbench.models.loading.architecture import text_config
from kvbench.support.errors import UserError

PLACES = (0, 1, 37)
"""Positions at which the same token is tried."""
AT_ONCE = 64
"""Positions whose rotation is averaged at a time."""

Turn = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Queries [heads, tokens, head_dim], cosine and sine in, rotated queries out."""


@dataclass(frozen=True)
class Rotation:
    """How one layer of a model rotates its queries; `turn` is None in a layer that does not."""

    angles: Callable[[int, int], tuple[Tensor, Tensor]]
    turn: Turn | None

    def undo(self, queries: Float[Tensor, "heads tokens head_dim"], first: int) -> Tensor:
        """Queries at positions first, first + 1, ... as they were before, in float32."""
        wide = queries.float()
        if self.turn is None:
            return wide
        cos, sin = (part.to(wide.device) for part in self.angles(first, queries.shape[1]))
        # Some models scale what they rotate: a rotation there and back shows by how much.
        scale = self.turn(self.turn(torch.ones_like(wide[:1]), cos, sin), cos, -sin)
        return self.turn(wide, cos, -sin) / scale

    def ahead(self, first: int, request: FutureQueries, like: Tensor) -> Float[Tensor, "head_dim head_dim"]:
        """The average rotation of the positions ahead as a matrix that rows are multiplied by, in float64."""
        basis = torch.eye(like.shape[-1], device=like.device)
        if self.turn is None:
            return basis.double()
        total = torch.zeros_like(basis, dtype=torch.float64)
        for start in range(first, first + request.positions, AT_ONCE):
            count = min(AT_ONCE, first + request.positions - start)
            cos, sin = (part.to(like.device) for part in self.angles(start, count))
            total += self.turn(basis[:, None].expand(-1, count, -1), cos, sin).sum(dim=1, dtype=torch.float64)
        return total / request.positions


@torch.inference_mode()
def rotations(model: Any) -> dict[int, Rotation]:
    """The rotation of every layer of a model that is attached to the bridge.

    Raises ValueError, naming the layer, where it cannot be undone.
    """
    tried = [alone(model, place).queries for place in PLACES]
    return {layer: _rotation(model, layer, [one[layer][:, None].float() for one in tried]) for layer in tried[0]}


class QueryMoments:
    """Sums over the queries of a layer without their rotation, for one request; in float64."""

    def __init__(self, rotation: Rotation, request: FutureQueries) -> None:
        self.rotation, self.request, self.count = rotation, request, 0
        self._sum = self._products = torch.zeros(())

    def add(self, queries: Float[Tensor, "heads new head_dim"], first: int) -> None:
        """Count rotated queries at positions first, first + 1, ... but those that the request skips."""
        skipped = max(0, self.request.skip - first)
        plain = self.rotation.undo(queries[:, skipped:], first + skipped)
        self.count += plain.shape[1]
        self._sum = plain.sum(dim=1, dtype=torch.float64) + self._sum.to(plain.device)
        self._products = (plain.mT @ plain).double() + self._products.to(plain.device)

    def statistics(self, num_tokens: int, scaling: float) -> FutureQueryStats:
        """Predicted mean and covariance of the queries that follow `num_tokens` tokens."""
        count = max(1, self.count)
        mean = self._sum / count
        covariance = self._products / count - mean[..., :, None] * mean[..., None, :]
        turned = self.rotation.ahead(num_tokens, self.request, mean)
        return FutureQueryStats(
            self.request, (mean @ turned).float(), (turned.mT @ covariance @ turned).float(), scaling
        )


def _rotation(model: Any, layer: int, tried: list[Tensor]) -> Rotation:
    """The first of: not rotated, rotated whole, rotated in part, that makes the tried queries equal."""
    angles = _angles(model, layer)
    for turn in (None, _whole(model, layer), _part(model, layer)):
        rotation = Rotation(angles, turn)
        try:
            plain = [rotation.undo(queries, place) for queries, place in zip(tried, PLACES, strict=True)]
        except (RuntimeError, TypeError, StopIteration):  # shapes that do not fit, or no such function
            continue
        tolerance = 8 * torch.finfo(model.dtype).eps * float(plain[0].abs().max())
        if all(torch.allclose(one, plain[0], rtol=0, atol=tolerance) for one in plain):
            return rotation
    raise UserError(
        f"{type(model).__name__} rotates the queries of layer {layer} in a way that kvbench cannot undo, as the score "
        "expected_attention needs: choose another score"
    )


def _whole(model: Any, layer: int) -> Turn:
    def turn(queries: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        modules = (module for module in model.modules() if getattr(module, "layer_idx", None) == layer)
        apply: Any = next(
            function
            for module in modules
            if (function := getattr(sys.modules[type(module).__module__], "apply_rotary_pos_emb", None))
        )
        return apply(queries[None], queries[None, :1], cos, sin)[0][0]

    return turn


def _part(model: Any, layer: int) -> Turn:
    whole = _whole(model, layer)

    def turn(queries: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        width = cos.shape[-1]
        return torch.cat((whole(queries[..., :width], cos, sin), queries[..., width:]), dim=-1)

    return turn


def _angles(model: Any, layer: int) -> Callable[[int, int], tuple[Tensor, Tensor]]:
    """Cosine and sine of positions first, first + 1, ... as the model's rotary embedding gives them."""
    kinds = getattr(text_config(model.config), "layer_types", None) or {layer: "full_attention"}

    def angles(first: int, tokens: int) -> tuple[Tensor, Tensor]:
        rotary = next(module for name, module in model.named_modules() if name.rpartition(".")[2] == "rotary_emb")
        device = next((part.device for part in rotary.buffers()), model.device)
        positions = torch.arange(first, first + tokens, device=device)[None]
        by_kind = "layer_type" in inspect.signature(rotary.forward).parameters
        return rotary(torch.empty(0, device=device), positions, **({"layer_type": kinds[layer]} if by_kind else {}))

    return angles
