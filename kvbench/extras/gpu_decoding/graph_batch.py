"""A batch whose steps of single tokens are the same whatever their number, so that a CUDA graph can replay one."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kvbench.cache.kv_cache import CutCache, KVCache
from kvbench.models.decode.batch import RaggedBatch, RaggedLayer

if TYPE_CHECKING:
    from kvbench.extras.gpu_decoding.rooms import Room


class GraphBatch(RaggedBatch):
    """A `RaggedBatch` that can count its tokens on its devices (`on_device`).

    room: memory that later batches have again, and a captured step with it. unshared: why it lies in none.
    """

    uncaptured: str | None = None

    def __init__(self, caches: Iterable[KVCache | CutCache], cells: int, max_new_tokens: int) -> None:
        self._past: dict[torch.device, Int[Tensor, ""]] = {}
        self._on_device = False
        self.room: Room | None = None
        super().__init__(caches, cells, max_new_tokens)
        self.unshared = "local layers" if self._local else "memory of its own"

    @contextmanager
    def on_device(self) -> Iterator[None]:
        """Read single tokens in the same way whatever their number, which only the device knows."""
        for device in {layer.device for layer in self._layers.values()}:
            self._past_on(device).fill_(self.num_new_tokens)
        self._on_device = True
        yield
        self._on_device = False

    def _past_on(self, device: torch.device) -> Int[Tensor, ""]:
        """Return the number of tokens read since the prompt, on a device that holds layers."""
        if device not in self._past:
            self._past[device] = torch.full((), self.num_new_tokens, device=device)
        return self._past[device]

    def finish(self, new: int) -> None:
        """Count tokens as read, on the devices too."""
        super().finish(new)
        for past in self._past.values():
            past += new

    def _tail(self, new: int) -> int:
        """`on_device` the whole room, of which a mask hides what is not read yet."""
        return self.max_new_tokens if self._on_device else super()._tail(new)

    def _append(
        self, store: Float[Tensor, "segments pairs head_dim"], prefix: int, new: Float[Tensor, "segments new head_dim"]
    ) -> None:
        if self._on_device:
            store.index_copy_(1, (prefix + self._past_on(store.device)).view(1), new)
        else:
            super()._append(store, prefix, new)

    def _unseen(
        self, columns: slice, new: int, end: int, group: int, state: RaggedLayer, device: torch.device
    ) -> Bool[Tensor, "rows columns"] | None:
        """`on_device` of a single new token."""
        if not self._on_device:
            return super()._unseen(columns, new, end, group, state, device)
        newest = self.num_tokens + self._past_on(device)
        positions = torch.arange(columns.start, columns.stop, device=device)
        masked = positions > newest
        if state.sliding_window is not None:
            masked |= positions <= newest - state.sliding_window
        return masked.expand(group, -1)
