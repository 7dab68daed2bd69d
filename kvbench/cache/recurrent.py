"""The state of layers that hold no keys (linear attention, state spaces, convolutions): no policy evicts from it."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class RecurrentState:
    """The states of `cells` sequences after the same number of tokens.

    layers: by index, transformers' own object for the state of a layer: its dictionaries hold tensors
    [cells, ...], which forward passes change in place.
    """

    layers: Mapping[int, Any]
    cells: int

    def of_cells(self, cells: Sequence[int]) -> "RecurrentState":
        """Return a copy of the states of these cells, in this order; a cell may occur more than once."""
        return _merged([self], len(cells), lambda rows: rows[0].index_select(0, torch.tensor(cells).to(rows[0].device)))

    def part(self, start: int, stop: int) -> "RecurrentState":
        """Return the cells from `start` to `stop`, in the same memory."""
        return _merged([self], stop - start, lambda rows: rows[0][start:stop])

    @property
    def bytes_held(self) -> int:
        """Bytes of the states of all cells."""
        values = [value for layer in self.layers.values() for part in _parts(layer).values() for value in part.values()]
        return sum(value.nbytes for value in values if isinstance(value, Tensor))


def join_states(states: Sequence[RecurrentState | None]) -> RecurrentState | None:
    """Return the copied states of several caches as one batch; None for a model without such layers."""
    present = [state for state in states if state is not None]
    assert len(present) in (0, len(states)), "all caches of a batch are of one model and have read tokens, or none has"
    return _merged(present, sum(state.cells for state in present), torch.cat) if present else None


def _merged(states: Sequence[RecurrentState], cells: int, merge: Callable[[list[Tensor]], Tensor]) -> RecurrentState:
    layers = {}
    for index, first in states[0].layers.items():
        layers[index] = copy.copy(first)
        for name, part in _parts(first).items():
            parts = [_parts(state.layers[index])[name] for state in states]
            merged = {
                key: merge([part[key] for part in parts]) if isinstance(value, Tensor) else value
                for key, value in part.items()
            }
            setattr(layers[index], name, merged)
    return RecurrentState(layers, cells)


def _parts(layer: Any) -> dict[str, dict[Any, Any]]:
    """Return the dictionaries of a layer's object: its tensors and what is known about each."""
    return {name: value for name, value in vars(layer).items() if isinstance(value, dict)}
