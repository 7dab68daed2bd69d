"""Keys as queries attend to them where kept pairs are numbered by their slots."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from kvbench.cache.kv_cache import LayerCache
from kvbench.models.key_rotation import ROTATED, KeyRotation, key_rotations
from kvbench.models.rope import read_alone
from kvbench.support.errors import UserError


@dataclass(frozen=True, eq=False)
class KeyReRotation:
    """Re-rotates keys by their slot in the cache, with the rotation of each layer.

    StreamingLLM (Xiao et al. 2024, https://arxiv.org/abs/2309.17453) keeps keys before their rotation and rotates them
    by their slot at every step (`pos_shift/modify_llama.py` of its code). Here the rotated key is rotated by the
    difference: the same numbers, rounded once. So layers hold keys as they were first rotated, and `ROTATED` says by
    which position.
    """

    by_layer: Mapping[int, KeyRotation]

    def show(self, layer: LayerCache) -> LayerCache:
        """Return a dense layer with every key rotated by its slot, as queries attend to it."""
        slots = torch.arange(layer.lengths[0], device=layer.keys.device).float().repeat(layer.cache_heads)
        return replace(layer, keys=self.by_layer[layer.index].turn(layer.keys, layer.state[ROTATED], slots))


@torch.inference_mode()
def re_rotation_of(model: Any, max_length: int | None = None) -> KeyReRotation:
    """Return how each layer of a model rotates: one of its frequency tables, verified on keys of the model.

    Raises UserError for layers that match no table, for several positions per token, and for local layers.
    """
    refused = f"policy.positions=cache: {type(model).__name__} {{}}; use policy.positions=original"
    for layer, rule in read_alone(model, 0).rules.items():
        if rule.within(max_length).sliding_window is not None:
            raise UserError(refused.format(f"has local layers, first layer {layer}, whose window counts tokens"))
    return KeyReRotation(key_rotations(model, refused))
