"""Rooms: memory of flat batches that outlives a prompt, so that a step captured over it serves later prompts too.

What a step launches depends on the sizes of the room, which are rounded up. What lies beyond the bounds of a prompt is
never read.
"""

import weakref
from collections.abc import Hashable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kvbench.extras.gpu_decoding.flat_layer import FlatLayer, flat_layer

MOST = 4
"""Rooms that are kept, the last ones used."""


class Room:
    """Memory for a batch of `layers` layers of `segments` segments each, with heads of the shape of `like`.

    sizes: the pairs of all layers, of the longest segment, and of a tail. captured: a step over this memory, by what it
    depends on besides. user: the batch that lies here, while it exists.
    """

    def __init__(
        self, like: Float[Tensor, "*any head_dim"], layers: int, segments: int, sizes: tuple[int, ...]
    ) -> None:
        self.sizes, (pairs, self.longest, tail), head_dim = sizes, sizes, like.shape[-1]
        self.keys, self.values = (like.new_empty(pairs, head_dim) for _ in range(2))
        self.starts = torch.zeros(layers, segments, dtype=torch.long, device=like.device)
        self.lengths = self.starts.int()
        self.tails = like.new_zeros(2, layers, segments, tail, head_dim)
        self.past = torch.zeros((), dtype=torch.long, device=like.device)
        self.captured: dict[Hashable, Any] = {}
        self.user: weakref.ref[Any] | None = None
        self._layers = self._pairs = 0

    @property
    def free(self) -> bool:
        """Whether no batch lies here."""
        return self.user is None or self.user() is None

    @property
    def bytes_held(self) -> int:
        return self.keys.nbytes + self.values.nbytes + self.tails.nbytes

    def enter(self, user: object) -> None:
        """Make the room empty, for another batch."""
        self.user, self._layers, self._pairs = weakref.ref(user), 0, 0
        self.past.zero_()

    def place(
        self, like: Float[Tensor, "any head_dim"], lengths: Int[Tensor, "layers segments"]
    ) -> tuple[list[Float[Tensor, "pairs head_dim"]], list[FlatLayer]]:
        """`placed` for the next layers of the batch."""
        rows, first = slice(self._layers, self._layers + len(lengths)), self._pairs
        self._layers, self._pairs = rows.stop, first + int(lengths.sum())
        ends = lengths.flatten().cumsum(0).view(lengths.shape) + first
        for bounds, numbers in ((self.starts, ends - lengths), (self.lengths, lengths.int())):
            bounds[rows].copy_(numbers, non_blocking=True)
        fields = zip(self.starts[rows], self.lengths[rows], *self.tails[:, rows], strict=True)
        layers = [
            flat_layer(self.keys, self.values, starts, held, self.longest, *tails) for starts, held, *tails in fields
        ]
        return [part[first : self._pairs] for part in (self.keys, self.values)], layers


class Rooms:
    """The rooms of an engine, by their shapes and rounded sizes."""

    def __init__(self) -> None:
        self._rooms: list[tuple[Hashable, Room]] = []

    @property
    def bytes_held(self) -> int:
        """Bytes of rooms, which batches take again or memory that runs short gets back."""
        return sum(room.bytes_held for _, room in self._rooms)

    def free(self) -> bool:
        """Forget all rooms; whether there were any. Their memory is free once no batch lies there."""
        had, self._rooms = bool(self._rooms), []
        return had

    @torch.inference_mode(False)  # what is written to within and without
    def take(
        self, user: object, like: Tensor, layers: int, heads: tuple[int, ...], sizes: tuple[int, int, int]
    ) -> Room | None:
        """Return a room for a batch, of at least these `sizes` (as of `Room`); None where memory is short for it.

        heads: the cache heads of each cell. A captured step depends on how they are divided among cells, so that
        batches of as many segments but other cells have rooms of their own. A room that is too small for a prompt gives
        way to a larger one of its shape.
        """
        shape, rounded = (like.device, like.dtype, like.shape[-1], layers, heads), tuple(map(round_up, sizes))
        segments = sum(heads)
        for place, (other, held) in enumerate(self._rooms):
            if other == shape and held.free and _serves(held.sizes, sizes, rounded):
                self._rooms.append(self._rooms.pop(place))
                held.enter(user)
                return held
        held = None  # nothing here keeps a room that gives way
        self._rooms = [each for each in self._rooms if each[0] != shape or not _near(each[1].sizes, rounded)]
        del self._rooms[: max(0, len(self._rooms) + 1 - MOST)]
        room = _made(like, layers, segments, rounded)
        if room is None and self.free():
            room = _made(like, layers, segments, rounded)
        if room is not None:
            self._rooms.append((shape, room))
            room.enter(user)
        return room


def _made(like: Tensor, layers: int, segments: int, sizes: tuple[int, ...]) -> Room | None:
    """Return a room; None if memory runs out."""
    try:
        return Room(like, layers, segments, sizes)
    except torch.OutOfMemoryError:
        return None


def round_up(number: int) -> int:
    """Return a number with room for a sixteenth more, and at most a fifth more: of four leading bits, or of small ones
    a multiple of 32.
    """
    number += number // 16
    step = 1 << max(5, number.bit_length() - 4)
    return -(-number // step) * step


def _serves(held: tuple[int, ...], asked: tuple[int, ...], rounded: tuple[int, ...]) -> bool:
    """Return whether sizes are enough for those that are asked for, and at most twice as large as they need be."""
    return all(need <= size <= 2 * most for size, need, most in zip(held, asked, rounded, strict=True))


def _near(held: tuple[int, ...], rounded: tuple[int, ...]) -> bool:
    """Return whether sizes are at most what is asked for, and no less than half of it."""
    return all(size <= need <= 2 * size for size, need in zip(held, rounded, strict=True))
