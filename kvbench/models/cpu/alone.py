"""One token alone at a position: what a layer asks and stores of it differs from place to place by rotation only."""

from typing import Any

import torch
from torch import Tensor

from kvbench.cache.attention import Rule
from kvbench.models import bridge

TOKEN = 5
"""Any token but those that models often fill up with, whose embedding may be zero."""


class Alone:
    """The reader of one token, which sees itself alone, wherever it stands. By layer: its queries and keys, [heads,
    head_dim] each, and the rule.
    """

    def __init__(self) -> None:
        self.queries: dict[int, Tensor] = {}
        self.keys: dict[int, Tensor] = {}
        self.rules: dict[int, Rule] = {}

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, rule: Rule) -> Tensor:
        """Its own value, which is all that it sees."""
        self.queries[layer], self.keys[layer], self.rules[layer] = queries[0, :, 0], keys[0, :, 0], rule
        return values.repeat_interleave(queries.shape[1] // values.shape[1], dim=1)


def alone(model: Any, position: int) -> Alone:
    """What the token is at a position to each layer of a model that is attached to the bridge."""
    reader = Alone()
    device = model.get_input_embeddings().weight.device
    bridge.forward(model, torch.tensor([[TOKEN]], device=device), position, reader)
    return reader
