"""How few rows a pass over a tile may have without changing a bit: what decoding a few cells costs on a CPU.

A matrix product may sum in another order when it has other numbers of rows, so a tile is padded to one number of cells.
CPU libraries go by a few kinds of shapes, and a pass of fewer rows is faster there. Which numbers give the bits of the
whole tile is not promised by anyone: it is tried, with the model's own weights, each time a model is loaded.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from kvbench.attention import Rule
from kvbench.models import bridge

NARROW = (1, 2, 4, 8)
"""Numbers of rows that are tried."""
DRAWS = 2
"""Passes of random tokens that must agree in every bit of every logit."""


class Idle:
    """A reader that attends to nothing: queries come back as they are."""

    def attend(
        self,
        layer: int,
        queries: Float[Tensor, "cells heads new head_dim"],
        keys: Float[Tensor, "cells kv_heads new head_dim"],
        values: Float[Tensor, "cells kv_heads new head_dim"],
        rule: Rule,
    ) -> Float[Tensor, "cells heads new head_dim"]:
        """The queries."""
        return queries


@torch.inference_mode()
def same_bits(model: Any, tile: int, tried: Sequence[int] = NARROW) -> tuple[int, ...]:
    """Numbers of rows below `tile` for which passes over one token give every row the bits that it has in a tile.

    `model` is attached to the bridge.
    """
    embedded = model.get_input_embeddings().weight
    left, generator = [rows for rows in tried if rows < tile], torch.Generator().manual_seed(0)
    for draw in range(DRAWS):
        ids = torch.randint(len(embedded), (tile, 1), generator=generator).to(embedded.device)
        whole = bridge.forward(model, ids, draw, Idle())
        left = [rows for rows in left if torch.equal(bridge.forward(model, ids[:rows], draw, Idle()), whole[:rows])]
    return tuple(left)
