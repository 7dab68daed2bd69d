"""The oracle of cells that evict together: each cell by itself, a layer at a time, by `IncrementalEviction.step`."""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from kvbench.cache.attention import AttentionParams, attend_layer
from kvbench.cache.kv_cache import LayerCache, ObservationWindow, joined
from kvbench.eviction.incremental import IncrementalEviction
from kvbench.extras.positions.re_rotation import KeyReRotation
from kvbench.models.key_rotation import ROTATED


@dataclass
class Alone:
    """One layer of one cell, which evicts as soon as `every` tokens were read since its last eviction."""

    evictor: IncrementalEviction
    every: int
    re_rotation: KeyReRotation | None = None
    layer: LayerCache | None = None
    read: int = 0
    rows: list[ObservationWindow] = field(default_factory=list)
    pending: int = 0

    def attend(self, rule: AttentionParams, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """The outputs of the new tokens; the layer afterwards is `layer`."""
        if self.layer is None:
            self.layer = self.evictor.start(0, len(queries), len(keys), keys)
            if self.re_rotation is not None:
                self.layer = replace(self.layer, state={**self.layer.state, ROTATED: self.layer.positions.float()})
        grown = self.layer.append(keys, values, self.read)
        if self.re_rotation is not None:  # the model rotates new keys by their slots
            rotated = grown.state[ROTATED].view(len(keys), -1).clone()
            rotated[:, -keys.shape[1] :] = torch.arange(grown.lengths[0])[-keys.shape[1] :]
            grown = replace(grown, state={**grown.state, ROTATED: rotated.flatten()})
        shown = grown if self.re_rotation is None else self.re_rotation.show(grown)
        rows = attend_layer(queries, shown, rule)
        self.rows.append(rows)
        self.read, self.pending = self.read + keys.shape[1], self.pending + keys.shape[1]
        self.layer = grown
        if self.pending >= self.every:
            left = self.evictor.step(shown, joined(self.rows)).layer
            if self.re_rotation is not None:  # keys are kept with their original rotation
                held, kept = (layer.positions.view(layer.cache_heads, -1) for layer in (grown, left))
                own = [torch.isin(*heads) for heads in zip(held, kept, strict=True)]
                left = replace(left, keys=grown.select(torch.stack(own)).keys)
            self.layer = left
            self.pending, self.rows = 0, []
        return rows.outputs
