"""Keys rotated anew: where a policy numbers what it kept 0, 1, ... again (`policy.positions=cache`).

StreamingLLM (Xiao et al. 2024, https://arxiv.org/abs/2309.17453) keeps keys before their rotation and rotates them by
their place in the cache at every step (`pos_shift/modify_llama.py` of its code). Ours keeps a key as it was read beside
the position by which it was rotated then, and turns it by the difference at every step: the same numbers, rounded once.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Complex, Float
from torch import Tensor

from kvbench.cache.kv_cache import KVCache, LayerCache
from kvbench.models import bridge
from kvbench.models.cpu.alone import alone
from kvbench.models.loading.architecture import text_config
from kvbench.models.prefill import within
from kvbench.support.errors import UserError

ROTATED = "rotated"
"""The position by which a key was rotated, in `LayerCache.state`: float32, whole up to 2**24."""

TRIED = (1, 37)
"""Positions at which the model must rotate the keys of a token as a rotation says."""

ROUNDING = {torch.float64: 1e-5, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""Largest |difference| over |keys| (Euclidean norms) that is rounding: tables of cosines are float32 in any dtype."""


@dataclass(frozen=True, eq=False)
class KeyRotation:
    """How a layer rotates: numbers i and i + half of a key, or 2i and 2i + 1 where `interleaved`, by frequency i.

    Numbers beyond twice the frequencies are not rotated. Angles are float32 products and their cosines rounded to the
    type of the keys, as in transformers, so that turning back undoes exactly what the model did.
    """

    frequencies: Float[Tensor, "half"]
    interleaved: bool

    def turn(
        self, keys: Float[Tensor, "pairs head_dim"], old: Float[Tensor, "pairs"], new: Float[Tensor, "pairs"]
    ) -> Float[Tensor, "pairs head_dim"]:
        """Keys that were rotated by positions `old`, as if rotated by `new`; in float32 or wider until the end."""
        wide = keys.float() if keys.itemsize < 4 else keys
        half = len(self.frequencies)
        turned, rest = wide[:, : 2 * half], wide[:, 2 * half :]
        parts = turned.view(-1, half, 2).unbind(-1) if self.interleaved else (turned[:, :half], turned[:, half:])
        numbers = torch.complex(*(part.contiguous() for part in parts))
        ratio = self._unit(new, keys.dtype) / self._unit(old, keys.dtype)
        numbers = numbers * ratio.where((new != old)[:, None], torch.ones_like(ratio))
        parts = (numbers.real, numbers.imag)
        turned = torch.stack(parts, dim=-1).flatten(1) if self.interleaved else torch.cat(parts, dim=-1)
        return torch.cat((turned, rest), dim=-1).to(keys.dtype)

    def _unit(self, positions: Float[Tensor, "pairs"], dtype: torch.dtype) -> Complex[Tensor, "pairs half"]:
        angles = positions.float()[:, None] * self.frequencies.float().to(positions.device)
        wide = torch.float32 if dtype.itemsize < 4 else dtype
        return torch.complex(angles.cos().to(dtype).to(wide), angles.sin().to(dtype).to(wide))


@dataclass(frozen=True, eq=False)
class KeyReRotation:
    """Caches whose slots are their positions, by the rotation of every layer of a model."""

    by_layer: Mapping[int, KeyRotation]

    def begin(self, cache: KVCache) -> KVCache:
        """The same pairs, numbered by their place from here on; keys are as they were read.

        Raises ValueError where heads or layers hold different numbers of pairs: the next token has one position.
        """
        lengths = {length for layer in cache.layers for length in layer.lengths}
        if len(lengths) != 1:
            raise UserError(
                f"policy.positions=cache: heads hold {min(lengths)} to {max(lengths)} pairs, so the next token would "
                "have another position in each; use policy.positions=original"
            )
        layers = tuple(
            replace(layer, state={**layer.state, ROTATED: layer.positions.float()}) for layer in cache.layers
        )
        return KVCache(layers, cache.num_tokens, resumes=lengths.pop())

    def append(
        self, layer: LayerCache, keys: Float[Tensor, "h n d"], values: Float[Tensor, "h n d"], first: int
    ) -> LayerCache:
        """`LayerCache.append` for new pairs whose keys the model rotated by the slots where they will stand."""
        grown = layer.append(keys, values, first)
        rotated = grown.state[ROTATED].view(grown.cache_heads, -1).clone()
        rotated[:, -keys.shape[1] :] = _slots(grown).view_as(rotated)[:, -keys.shape[1] :]
        return replace(grown, state={**grown.state, ROTATED: rotated.flatten()})

    def show(self, layer: LayerCache) -> LayerCache:
        """A dense layer as a query sees it: every key rotated by its slot."""
        keys = self.by_layer[layer.index].turn(layer.keys, layer.state[ROTATED], _slots(layer))
        return replace(layer, keys=keys)

    def show_all(self, cache: KVCache) -> KVCache:
        """A cache as queries see it, for reading on without another cut."""
        layers = []
        for layer in map(self.show, cache.layers):
            state = {name: tensor for name, tensor in layer.state.items() if name != ROTATED}
            layers.append(replace(layer, state=state))
        return KVCache(tuple(layers), cache.num_tokens, resumes=cache.resumes)

    def stored(self, before: LayerCache, shown: LayerCache) -> LayerCache:
        """What is left of `before` after a cut of what `show` made of it: its keys as they were read."""
        was, left = (layer.positions.view(layer.cache_heads, -1) for layer in (before, shown))
        kept = torch.stack([torch.isin(head, stays) for head, stays in zip(was, left, strict=True)])
        return replace(shown, keys=before.select(kept).keys)


def _slots(layer: LayerCache) -> Float[Tensor, "pairs"]:
    return torch.arange(layer.lengths[0], device=layer.keys.device).float().repeat(layer.cache_heads)


@torch.inference_mode()
def renumbering_of(model: Any, max_length: int | None = None) -> KeyReRotation:
    """How each layer of a model rotates: one of its own frequency tables, proved on keys that the model makes.

    Raises ValueError for layers that do not rotate, or not as a table says, for frequencies that depend on the length
    or on more than one position, and for local layers.
    """
    refused = f"policy.positions=cache: {type(model).__name__} {{}}; use policy.positions=original"
    text = text_config(model.config)
    if "mrope_section" in str(getattr(text, "rope_parameters", None)):
        raise UserError(refused.format("rotates by several positions a token (m-rope)"))
    read = {position: alone(model, position) for position in (0, *TRIED)}
    for layer, rule in read[0].rules.items():
        if within(rule, max_length).sliding_window is not None:
            raise UserError(refused.format(f"has local layers, first layer {layer}, whose window counts tokens"))
    candidates = [KeyRotation(table, pairs) for table in bridge.frequencies(model) for pairs in (False, True)]
    found = {}
    for layer, keys in read[0].keys.items():
        fitting = [one for one in candidates if _fits(one, keys, {at: read[at].keys[layer] for at in TRIED})]
        if not fitting:
            raise UserError(refused.format(f"does not rotate the keys of layer {layer} by a table of frequencies"))
        found[layer] = fitting[0]
    return KeyReRotation(found)


def _fits(rotation: KeyRotation, keys: Float[Tensor, "h d"], moved: Mapping[int, Float[Tensor, "h d"]]) -> bool:
    """Whether keys at position 0 turn into those at the others."""
    if 2 * len(rotation.frequencies) > keys.shape[1]:
        return False
    start = torch.zeros(len(keys), device=keys.device)
    errors = [(rotation.turn(keys, start, start + at) - wanted).norm() / wanted.norm() for at, wanted in moved.items()]
    return all(error <= ROUNDING[keys.dtype] for error in errors)
