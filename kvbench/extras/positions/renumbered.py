"""Caches whose pairs are numbered by their slots: after the eviction of a prompt, and while they grow."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kvbench.cache.kv_cache import KVCache, LayerCache, ObservationWindow
from kvbench.extras.positions.re_rotation import KeyReRotation, re_rotation_of
from kvbench.models.decode.batch import CellPairs
from kvbench.models.decode.evicting_cache import EvictingCache
from kvbench.models.engine import Engine
from kvbench.models.key_rotation import ROTATED
from kvbench.support.errors import UserError


def rotation_of(engine: Engine) -> KeyReRotation:
    """Return how the model of an engine rotates keys. Raises UserError if they cannot be rotated again."""
    if "key re-rotation" not in engine.determined:
        engine.check_rotation("policy.positions=cache", "use policy.positions=original")
        engine.determined["key re-rotation"] = re_rotation_of(engine.model, engine.max_length)
    return engine.determined["key re-rotation"]


@dataclass(frozen=True, repr=False, kw_only=True)
class RenumberedCache(KVCache):
    """A cache whose layers hold keys as they were first rotated. next_position: of the next token."""

    next_position: int
    re_rotation: KeyReRotation

    @property
    def position(self) -> int:
        return self.next_position

    @property
    def shown(self) -> "RenumberedCache":
        """The same pairs with keys rotated by their slots, to continue without another eviction."""
        layers = []
        for layer in map(self.re_rotation.show, self.layers):
            state = {name: numbers for name, numbers in layer.state.items() if name != ROTATED}
            layers.append(replace(layer, state=state))
        return replace(self, layers=tuple(layers), stacks=())


def renumbered(cache: KVCache, re_rotation: KeyReRotation) -> RenumberedCache:
    """Return the pairs of a cache, numbered by their slot from now on; keys keep the rotation with which they were
    read.

    Raises UserError if heads hold different numbers of pairs.
    """
    lengths = {length for layer in cache.layers for length in layer.lengths}
    if len(lengths) != 1:
        raise UserError(
            f"policy.positions=cache: heads hold {min(lengths)} to {max(lengths)} pairs, so the next token would have "
            "another position in each; use policy.positions=original"
        )
    layers = tuple(replace(layer, state={**layer.state, ROTATED: layer.positions.float()}) for layer in cache.layers)
    return RenumberedCache(
        layers, cache.num_tokens, cache.recurrent, next_position=lengths.pop(), re_rotation=re_rotation
    )


@dataclass(kw_only=True)
class RenumberedEvictingCache(EvictingCache):
    """A cache that numbers what it holds by slots after every eviction; new tokens follow.

    re_rotation: how the model rotates keys.
    """

    re_rotation: KeyReRotation

    def empty(self, index: int, heads: int, keys: CellPairs, sliding_window: int | None) -> LayerCache:
        empty = super().empty(index, heads, keys, sliding_window)
        return replace(empty, state={**empty.state, ROTATED: keys.new_empty(0, dtype=torch.float32)})

    def grow(
        self, held: LayerCache, keys: CellPairs, values: CellPairs, state: dict[str, Tensor]
    ) -> tuple[LayerCache, LayerCache]:
        first = held.lengths[0]  # the model rotates new keys by their slots
        slots = torch.arange(first, first + keys.shape[1], device=keys.device).float()
        grown, _ = super().grow(held, keys, values, {**state, ROTATED: slots[None]})
        return grown, self.re_rotation.show(grown)

    def evict(self, grown: LayerCache, shown: LayerCache, window: ObservationWindow | None) -> LayerCache:
        evicted = super().evict(grown, shown, window)
        if evicted is grown:
            return grown
        held, kept = (layer.positions.view(layer.cache_heads, -1) for layer in (grown, evicted))
        own = torch.stack([torch.isin(*heads) for heads in zip(held, kept, strict=True)])
        return replace(evicted, keys=grown.select(own, evicted.lengths).keys)  # as they were first rotated

    def finish(self, new: int, elsewhere: int = 0) -> None:
        due = self.due(new)
        super().finish(new, elsewhere)
        if due:
            self.position = min(self.position, self.evictor.least_capacity)

    def freeze(self) -> KVCache:
        cache = super().freeze()
        return RenumberedCache(
            cache.layers,
            cache.num_tokens,
            cache.recurrent,
            next_position=self.position,
            re_rotation=self.re_rotation,
        )
