"""Rotary position embeddings: length-dependent frequencies, queries before rotation.

Nothing is assumed of a model class. Rotations are determined by trial: a single token is read at several positions
(`read_alone`), where its queries and keys differ only by the rotation.
"""

import inspect
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from kvbench.cache.kv_cache import FutureQueryStats, PredictedQueries
from kvbench.models import bridge
from kvbench.models.loading.architecture import text_config
from kvbench.support.errors import UserError

TOKEN = 5
"""A token that models seldom use for padding, whose embedding could be zero."""
POSITIONS: tuple[int, ...] = (0, 1, 37)
"""Positions at which the token is tried."""
LENGTH_DEPENDENT = ("dynamic", "longrope")

AT_ONCE = 64
"""Positions whose rotations are averaged at a time."""


def read_alone(model: Any, position: int) -> bridge.TrialCache:
    """Return queries and keys of a token at a position in every layer, for a model attached to the bridge."""
    reader = bridge.TrialCache()
    device = model.get_input_embeddings().weight.device
    bridge.forward(model, torch.tensor([[TOKEN]], device=device), position, reader)
    return reader


@dataclass(frozen=True)
class LengthRope:
    """A rotation with other frequencies beyond `border` tokens: `longrope` has one set, `dynamic` one per length.

    transformers takes the last position of a forward pass for the length, so prompts are read whole. What is read later
    must not change the frequencies either: cached keys stay as they were rotated. transformers' own `generate` drops
    the cache there (Phi-3) or goes on with keys that do not fit (dynamic).
    """

    kind: str
    border: int

    def check(self, prompt: int, later: int) -> None:
        """Raise UserError if `later` tokens read after a prompt of `prompt` would change its frequencies."""
        total = prompt + later
        steady = (prompt > self.border) == (total > self.border) and (self.kind == "longrope" or total <= self.border)
        if later and not steady:
            raise UserError(
                f"the model's rope_type {self.kind} changes its frequencies beyond {self.border} tokens: after a "
                f"prompt of {prompt} tokens {later} more tokens would need other frequencies; use shorter prompts or "
                "answers"
            )


def length_rope(config: Any) -> LengthRope | None:
    """Return the length-dependent embedding of a configuration, or None if frequencies are the same at any length."""
    text = text_config(config)
    parameters = getattr(text, "rope_parameters", None) or {}
    rope_settings = [parameters] if "rope_type" in parameters else [part for part in parameters.values() if part]
    embeddings = {
        LengthRope(
            rope["rope_type"],
            rope["original_max_position_embeddings"]
            if rope["rope_type"] == "longrope"
            else text.max_position_embeddings,
        )
        for rope in rope_settings
        if isinstance(rope, dict) and rope.get("rope_type") in LENGTH_DEPENDENT
    }
    if len(embeddings) > 1:
        kinds = ", ".join(sorted(f"{rope.kind} beyond {rope.border}" for rope in embeddings))
        raise UserError(f"layers differ in how their frequencies depend on the length ({kinds}): not supported")
    return embeddings.pop() if embeddings else None


@dataclass(frozen=True, eq=False)
class Rotation:
    """How a layer of a model rotates its queries: no dimensions, all, or the first, as many as there are cosines.

    The model's own function with the sine negated undoes it, whatever its convention (halves or neighbours).
    """

    model: Any
    layer: int
    dims: Literal["none", "all", "first"]

    def angles(self, first: int, tokens: int) -> tuple[Tensor, Tensor]:
        """Cosine and sine of positions first, first + 1, ... as the model's rotary embedding gives them."""
        rotary = next(module for name, module in self.model.named_modules() if name.rpartition(".")[2] == "rotary_emb")
        device = next((part.device for part in rotary.buffers()), self.model.device)
        positions, options = torch.arange(first, first + tokens, device=device)[None], {}
        if "layer_type" in inspect.signature(rotary.forward).parameters:
            kinds = getattr(text_config(self.model.config), "layer_types", None)
            options["layer_type"] = kinds[self.layer] if kinds else "full_attention"
        return rotary(torch.empty(0, device=device), positions, **options)

    def turn(self, queries: Float[Tensor, "heads tokens head_dim"], cos: Tensor, sin: Tensor) -> Tensor:
        """Return the queries rotated by the model's own `apply_rotary_pos_emb`."""
        modules = (module for module in self.model.modules() if getattr(module, "layer_idx", None) == self.layer)
        apply: Any = next(
            function
            for module in modules
            if (function := getattr(sys.modules[type(module).__module__], "apply_rotary_pos_emb", None))
        )
        width = cos.shape[-1] if self.dims == "first" else queries.shape[-1]
        rotated, rest = queries[..., :width], queries[..., width:]
        turned = apply(rotated[None], rotated[None, :1], cos, sin)[0][0]
        return torch.cat((turned, rest), dim=-1) if self.dims == "first" else turned

    def undo(self, queries: Float[Tensor, "heads tokens head_dim"], first: int) -> Tensor:
        """Return queries at positions first, first + 1, ... as they were before, in float32."""
        wide = queries.float()
        if self.dims == "none":
            return wide
        cos, sin = (part.to(wide.device) for part in self.angles(first, queries.shape[1]))
        # Some models also scale: a rotation and its inverse show by how much.
        scale = self.turn(self.turn(torch.ones_like(wide[:1]), cos, sin), cos, -sin)
        return self.turn(wide, cos, -sin) / scale

    def ahead(self, first: int, request: PredictedQueries, like: Tensor) -> Float[Tensor, "head_dim head_dim"]:
        """Return the average rotation of the requested positions, as a matrix to multiply rows by, in float64."""
        basis = torch.eye(like.shape[-1], device=like.device)
        if self.dims == "none":
            return basis.double()
        total = torch.zeros_like(basis, dtype=torch.float64)
        for start in range(first, first + request.positions, AT_ONCE):
            count = min(AT_ONCE, first + request.positions - start)
            cos, sin = (part.to(like.device) for part in self.angles(start, count))
            total += self.turn(basis[:, None].expand(-1, count, -1), cos, sin).sum(dim=1, dtype=torch.float64)
        return total / request.positions


@torch.inference_mode()
def rotations(model: Any) -> dict[int, Rotation]:
    """Return the rotation of every layer of a model on the bridge: the first kind that makes queries at all positions
    equal.

    Raises UserError if one cannot be undone.
    """
    tried = [read_alone(model, position).queries for position in POSITIONS]
    kinds: tuple[Literal["none", "all", "first"], ...] = ("none", "all", "first")
    by_layer = {}
    for layer in tried[0]:
        candidates = (Rotation(model, layer, dims) for dims in kinds)
        rotation = next((rotation for rotation in candidates if _undoes(rotation, tried)), None)
        if rotation is None:
            raise UserError(
                f"{type(model).__name__} rotates the queries of layer {layer} in a way that kvbench cannot undo, as "
                "scores of queries or keys before rotation need: choose another score"
            )
        by_layer[layer] = rotation
    return by_layer


def _undoes(rotation: Rotation, tried: Sequence[Mapping[int, Tensor]]) -> bool:
    """Return whether a rotation makes the queries of a token, by position and layer, equal."""
    try:
        plain = [
            rotation.undo(queries[rotation.layer][0].float(), place)
            for queries, place in zip(tried, POSITIONS, strict=True)
        ]
    except (RuntimeError, TypeError, StopIteration):  # shapes that do not fit, or no such function
        return False
    tolerance = 8 * torch.finfo(rotation.model.dtype).eps * float(plain[0].abs().max())
    return all(torch.allclose(queries, plain[0], rtol=0, atol=tolerance) for queries in plain)


class QueryMoments:
    """Sums over the queries of a layer before their rotation, for one request; in float64."""

    def __init__(self, rotation: Rotation, request: PredictedQueries) -> None:
        self.rotation, self.request, self.count = rotation, request, 0
        self._sum = self._products = torch.zeros(())

    def add(self, queries: Float[Tensor, "heads new head_dim"], first: int) -> None:
        """Add rotated queries at positions first, first + 1, ... except those that the request skips."""
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
