"""How few rows a pass over a tile may have without changing a bit: what decoding a few cells costs on a CPU.

A matrix product may sum in another order when it has other numbers of rows, so a tile is padded to one number of cells.
On a CPU a pass may have fewer. Where all products of a model are those of `OneDnnLinear` it has as many rows as there
are cells. Else libraries go by a few kinds of shapes; which numbers of rows give the bits of the whole tile is not
promised by anyone: it is tried, with the model's own weights, for passes over one token, when the model is loaded.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kvbench.cache.attention import Rule
from kvbench.models import bridge
from kvbench.models.cpu import onednn

NARROW = (1, 2, 4, 8)
"""Numbers of rows that are tried."""
DRAWS = 2
"""Passes of random tokens that must agree in every bit of every logit and of what the last layer would cache."""
FEWEST = 4
"""Rows that the output layer is given at least, where so many tokens are read: it takes a token of each cell only, and
is the one matrix that a few cells would change."""
PRODUCTS = ("mm", "addmm", "linear", "matmul", "einsum", "_grouped_mm")
"""Operations of torch that multiply all rows with one matrix."""
INEXACT = (
    *("cos", "sin", "tanh", "exp", "expm1", "log", "log1p", "pow"),
    *("sigmoid", "silu", "gelu", "mish", "softplus", "erf", "elu"),
)
"""Functions that torch computes by vectors, and what is left at the end of a part by another routine."""
FIRST = 3
"""The position of the first token of a trial: at 0 nothing is rotated."""
VECTOR = 32
"""Numbers that such a routine takes at a time, at most."""
GRAIN = 2**15
"""Numbers from which on they are shared out to threads."""


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


@dataclass(frozen=True)
class Narrow:
    """How many rows a pass has whose real cells are few.

    widths: of products that are alike for any number of rows: how many numbers a token has where functions are applied
    whose last bits depend on where vectors end; None: products are not. steps: else, numbers of rows that do for one
    token, `same_bits`; empty: every pass has the rows of a whole tile. So has a pass over a question then: a trial with
    random tokens can agree where the real ones differ in the last bit.
    """

    steps: tuple[int, ...] = ()
    widths: tuple[int, ...] | None = None

    def rows(self, tile: int, real: int, new: int) -> int:
        """Rows for `new` tokens in `real` of a tile's cells."""
        if self.widths is not None:
            return next((rows for rows in range(real, tile) if self._in_vectors(rows * new)), tile)
        return min((rows for rows in self.steps if rows >= real), default=tile) if new == 1 else tile

    def last_of(self, rows: int, new: int) -> int:
        """Of how many tokens a pass over `new` takes logits, where only those of the last one are wanted."""
        return 1 if self.widths is not None else min(new, -(-FEWEST // rows))

    @property
    def told(self) -> list[int] | str:
        """For the environment file."""
        return "any" if self.widths is not None else list(self.steps)

    def _in_vectors(self, tokens: int) -> bool:
        """Whether no part of any function's work ends within a vector."""
        return all(part % VECTOR == 0 for width in self.widths or () for part in _parts(tokens * width))


@torch.inference_mode()
def narrow_of(model: Any, tile: int) -> Narrow:
    """What is found of a model on a CPU that is attached to the bridge."""
    if onednn.alike(model):
        watching = _Watching()
        with watching:
            _pass(model, torch.zeros(1, 1, dtype=torch.long), 1)
        found = Narrow(widths=tuple(sorted(watching.widths)))
        if not watching.products and all(_free(model, tile, new, found) for new in (1, 2)):
            return found
    return Narrow(same_bits(model, tile))


def _free(model: Any, tile: int, new: int, narrow: Narrow) -> bool:
    """Whether passes over `new` tokens agree with what is believed of the model."""
    few = [rows for rows in (1, 3, 8) if rows < tile and narrow.rows(tile, rows, new) == rows]
    return _alike(model, tile, few, new, narrow, torch.Generator().manual_seed(0)) == few


@torch.inference_mode()
def same_bits(model: Any, tile: int, tried: Sequence[int] = NARROW) -> tuple[int, ...]:
    """Numbers of rows below `tile` for which passes over one token give every row the bits that it has in a tile.

    `model` is attached to the bridge.
    """
    left, generator = [rows for rows in tried if rows < tile], torch.Generator().manual_seed(0)
    for _ in range(DRAWS):
        left = _alike(model, tile, left, 1, Narrow(), generator)
    return tuple(left)


class _Watching(TorchDispatchMode):
    """What torch is asked for in a pass over one token."""

    def __init__(self) -> None:
        super().__init__()
        self.widths: set[int] = set()
        self.products: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found, name = func(*args, **(kwargs or {})), func.overloadpacket.__name__.removesuffix("_")
        if name in PRODUCTS:
            self.products.add(name)
        if name in INEXACT:
            self.widths.add(found.numel())
        return found


def _parts(numbers: int) -> Iterator[int]:
    """What the threads of torch take of so many numbers: all the same, and what is left for the last."""
    threads = min(torch.get_num_threads(), ceil(numbers / GRAIN))
    share = ceil(numbers / max(1, threads))
    yield from (share, numbers % share)


def _alike(
    model: Any, tile: int, tried: Sequence[int], new: int, narrow: Narrow, generator: torch.Generator
) -> list[int]:
    """Those of `tried` whose rows have the bits of a whole tile in one pass over random tokens."""
    embedded = model.get_input_embeddings().weight
    ids = torch.randint(len(embedded), (tile, new), generator=generator).to(embedded.device)
    whole, left = _pass(model, ids, narrow.last_of(tile, new)), []
    for rows in tried:
        found = _pass(model, ids[:rows], narrow.last_of(rows, new))
        if all(torch.equal(part, of[:rows]) for part, of in zip(found, whole, strict=True)):
            left.append(rows)
    return left


def _pass(model: Any, ids: Tensor, last: int) -> tuple[Tensor, ...]:
    """The logits of the last token, and what the last layer would cache."""
    idle = Idle()
    logits = bridge.logits(model, ids, FIRST, idle, last)
    return (logits[:, -1], *idle.heard)
