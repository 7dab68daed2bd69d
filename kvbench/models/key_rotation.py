"""Keys that a model rotated by one position, as if by another: by tables of frequencies, verified by trial."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from kvbench.models import bridge
from kvbench.models.loading.architecture import text_config
from kvbench.models.rope import POSITIONS, read_alone
from kvbench.support.errors import UserError

ROTATED = "rotated"
"""The name in `LayerCache.state` of the position by which a key was rotated, where its pair has another one by now. It
is float32, whole up to 2**24."""
ROUNDING = {torch.float64: 1e-5, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""Largest |difference| over |keys| (Euclidean norms) that is rounding: tables of cosines are float32 in any dtype."""


@dataclass(frozen=True, eq=False)
class KeyRotation:
    """How a layer rotates: numbers i and i + half of a key, or 2i and 2i + 1 if `interleaved`, by frequency i; the
    numbers beyond not at all.

    Angles are float32 and cosines rounded to the type of the keys, as in transformers: turning back undoes its bits.
    """

    frequencies: Float[Tensor, "half"]
    interleaved: bool

    def turn(
        self, keys: Float[Tensor, "pairs head_dim"], old: Float[Tensor, "pairs"], new: Float[Tensor, "pairs"]
    ) -> Float[Tensor, "pairs head_dim"]:
        """Keys that were rotated by positions `old`, as if rotated by `new`; in float32 or wider until the end."""
        wide = keys.float() if keys.itemsize < 4 else keys
        half = len(self.frequencies)
        turned, unturned = wide[:, : 2 * half], wide[:, 2 * half :]
        parts = turned.view(-1, half, 2).unbind(-1) if self.interleaved else (turned[:, :half], turned[:, half:])
        # not as complex numbers: PyTorch rounds the last ones of an array otherwise than the others
        (old_cos, old_sin), (new_cos, new_sin) = self._unit(old, keys.dtype), self._unit(new, keys.dtype)
        size, same = old_cos * old_cos + old_sin * old_sin, (new == old)[:, None]
        cos = ((new_cos * old_cos + new_sin * old_sin) / size).masked_fill(same, 1)
        sin = ((new_sin * old_cos - new_cos * old_sin) / size).masked_fill(same, 0)
        parts = (parts[0] * cos - parts[1] * sin, parts[0] * sin + parts[1] * cos)
        turned = torch.stack(parts, dim=-1).flatten(1) if self.interleaved else torch.cat(parts, dim=-1)
        return torch.cat((turned, unturned), dim=-1).to(keys.dtype)

    def _unit(
        self, positions: Float[Tensor, "pairs"], dtype: torch.dtype
    ) -> tuple[Float[Tensor, "pairs half"], Float[Tensor, "pairs half"]]:
        """Cosines and sines, rounded as the model rounds them."""
        angles = positions.float()[:, None] * self.frequencies.float().to(positions.device)
        wide = torch.float32 if dtype.itemsize < 4 else dtype
        return angles.cos().to(dtype).to(wide), angles.sin().to(dtype).to(wide)


@torch.inference_mode()
def key_rotations(model: Any, refused: str) -> dict[int, KeyRotation]:
    """Return how each layer of a model rotates keys and queries. Raises UserError, `refused` with the reason, if it
    does not by a table of frequencies.
    """
    if "mrope_section" in str(getattr(text_config(model.config), "rope_parameters", None)):
        raise UserError(refused.format("rotates by several positions a token (m-rope)"))
    read = {position: read_alone(model, position) for position in POSITIONS}
    candidates = [
        KeyRotation(table, interleaved) for table in bridge.frequencies(model) for interleaved in (False, True)
    ]
    by_layer = {}
    for layer in read[0].keys:
        keys, *others = (read[position].keys[layer][0, :, 0] for position in POSITIONS)
        moved = dict(zip(POSITIONS[1:], others, strict=True))
        rotation = next((candidate for candidate in candidates if _fits(candidate, keys, moved)), None)
        if rotation is None:
            raise UserError(refused.format(f"does not rotate the keys of layer {layer} by a table of frequencies"))
        by_layer[layer] = rotation
    return by_layer


def _fits(rotation: KeyRotation, keys: Float[Tensor, "h d"], moved: Mapping[int, Float[Tensor, "h d"]]) -> bool:
    """Return whether keys at position 0 turn into those at the others."""
    if 2 * len(rotation.frequencies) > keys.shape[1]:
        return False
    start = torch.zeros(len(keys), device=keys.device)
    errors = [(rotation.turn(keys, start, start + p) - key).norm() / key.norm() for p, key in moved.items()]
    return all(error <= ROUNDING[keys.dtype] for error in errors)
