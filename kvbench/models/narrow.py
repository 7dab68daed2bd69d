"""How few rows a pass over a tile may have without changing a bit: what decoding a few cells costs on a CPU.

A matrix product may sum in another order when it has other numbers of rows, so a tile is padded to one number of cells.
CPU libraries go by a few kinds of shapes, and a pass of fewer rows is faster there. Which numbers give the bits of the
whole tile is not promised by anyone: it is tried, with the model's own weights, for passes over one token, when the
model is loaded.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from kvbench.attention import Rule
from kvbench.models import bridge

NARROW = (1, 2, 4, 8)
"""Numbers of rows that are tried."""
DRAWS = 2
"""Passes of random tokens that must agree in every bit of every logit and of what the last layer would cache."""
FEWEST = 4
"""Rows that the output layer is given at least, where so many tokens are read: it takes a token of each cell only, and
is the one matrix that a few cells would change."""


class Idle:
    """A reader that attends to nothing: queries come back as they are. It holds what the last layer gave it."""

    def __init__(self) -> None:
        self.heard: tuple[Tensor, ...] = ()

    def attend(
        self,
        layer: int,
        queries: Float[Tensor, "cells heads new head_dim"],
        keys: Float[Tensor, "cells kv_heads new head_dim"],
        values: Float[Tensor, "cells kv_heads new head_dim"],
        rule: Rule,
    ) -> Float[Tensor, "cells heads new head_dim"]:
        """The queries."""
        self.heard = (queries, keys, values)
        return queries


@torch.inference_mode()
def same_bits(model: Any, tile: int, tried: Sequence[int] = NARROW) -> tuple[int, ...]:
    """Numbers of rows below `tile` for which passes over one token give every row the bits that it has in a tile.

    `model` is attached to the bridge.
    """
    left, generator = [rows for rows in tried if rows < tile], torch.Generator().manual_seed(0)
    for draw in range(DRAWS):
        left = _alike(model, tile, left, 1, draw, generator)
    return tuple(left)


@dataclass(frozen=True)
class Narrow:
    """How many rows a pass has whose real cells are few. `steps`: numbers that do for one token, `same_bits`; empty:
    every pass has the rows of a whole tile. So has a pass over a question: a trial with random tokens can agree where
    the real ones differ in the last bit.
    """

    steps: tuple[int, ...] = ()

    def rows(self, tile: int, real: int, new: int) -> int:
        """Rows for `new` tokens in `real` of a tile's cells."""
        return min((rows for rows in self.steps if rows >= real), default=tile) if new == 1 else tile


def last_of(rows: int, new: int) -> int:
    """Of how many tokens a pass over `new` takes logits, where only those of the last one are wanted."""
    return min(new, -(-FEWEST // rows))


def _alike(model: Any, tile: int, tried: Sequence[int], new: int, first: int, generator: torch.Generator) -> list[int]:
    """Those of `tried` whose rows have the bits of a whole tile in one pass over random tokens."""
    embedded = model.get_input_embeddings().weight
    ids = torch.randint(len(embedded), (tile, new), generator=generator).to(embedded.device)

    def told(rows: int) -> tuple[Tensor, ...]:
        idle = Idle()
        logits = bridge.logits(model, ids[:rows], first, idle, last_of(rows, new))
        return (logits[:, -1], *idle.heard)

    whole = told(tile)
    return [
        rows for rows in tried if all(torch.equal(part, of[:rows]) for part, of in zip(told(rows), whole, strict=True))
    ]
