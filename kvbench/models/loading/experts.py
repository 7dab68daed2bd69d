"""Mixtures of experts in a batch of cells: the tokens of each cell go through the experts by themselves.

Experts multiply all tokens that were routed to them at once. How many those are depends on the other cells of a batch,
and the last bits of a matrix product depend on its shape: a cell's answer would depend on which cells decode with it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

_cells: ContextVar[int] = ContextVar("kvbench_cells", default=1)


@contextmanager
def batch_of(cells: int) -> Iterator[None]:
    """Within it a forward pass reads as many tokens of each of so many cells, one cell after the other."""
    token = _cells.set(cells)
    try:
        yield
    finally:
        _cells.reset(token)


def separate_cells(model: Any) -> None:
    """Let the experts of `model` see one cell at a time. transformers names their modules `...Experts`."""
    for module in model.modules():
        if type(module).__name__.endswith("Experts"):
            module.forward = _by_cell(module.forward)


def _by_cell(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Experts' `forward` over tokens and their routing, all with a row a token or a row a cell."""

    def by_cell(*parts: Tensor, **named: Tensor) -> Tensor:
        cells = _cells.get()
        if cells == 1:
            return forward(*parts, **named)
        assert all(len(part) % cells == 0 for part in (*parts, *named.values())), "tokens that no cell owns"
        own = [part.chunk(cells) for part in parts]
        own_named = {name: part.chunk(cells) for name, part in named.items()}
        return torch.cat(
            [
                forward(*(part[cell] for part in own), **{name: part[cell] for name, part in own_named.items()})
                for cell in range(cells)
            ]
        )

    return by_cell
