"""Where the pairs of a cell are while it answers: `store`."""

from typing import Literal, get_args

Packing = Literal["int8", "int4", "int2", "kivi4", "kivi2"]
"""Formats in which pairs are held in few bits: `kvbench.cache.quantized`."""

Store = Literal["flat", "shared", "int8", "int4", "int2", "kivi4", "kivi2"]
"""`flat`: a copy of what the cell keeps and nothing else, the truth. `shared`: the one full cache of the prompt behind
a mask of what each cell keeps. The others: a copy of what it keeps, in few bits."""

PACKINGS: tuple[Packing, ...] = get_args(Packing)


def packing_of(store: Store) -> Packing | None:
    """The format of a store that packs."""
    return next((one for one in PACKINGS if one == store), None)
