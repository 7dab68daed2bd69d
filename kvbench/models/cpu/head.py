"""The output layer in float32 for models of half precision.

Rounded to bfloat16, the two best logits are often equal, and the first of them would win. The products of half
precision numbers are exact in float32, so only the sum is rounded. transformers' own scaling and soft-capping of logits
comes after the output layer and so runs in float32 too.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kvbench.support.errors import UserError

ROWS = 2**14
"""Rows of the matrix that are widened at a time."""


class WideHead(nn.Module):
    """Logits [..., vocabulary] in float32 from the weight of an output layer, which is shared and not copied."""

    def __init__(self, narrow: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = narrow.weight, narrow.bias

    def forward(self, hidden: Float[Tensor, "*rows hidden"]) -> Float[Tensor, "*rows vocabulary"]:
        """Widen the weight a few rows at a time and multiply."""
        wide = hidden.to(self.weight.device, torch.float32)
        logits = torch.cat([wide @ part.float().mT for part in self.weight.split(ROWS)], dim=-1)
        return logits if self.bias is None else logits + self.bias.float()


def widen(model: Any) -> bool:
    """Replace the output layer of a half precision model; returns whether there was anything to widen.

    Raises ValueError for a model whose output layer is not a plain matrix.
    """
    head = model.get_output_embeddings()
    if head is not None and head.weight.itemsize > 2:
        return False
    if not isinstance(head, nn.Linear):
        raise UserError(f"the output layer of {type(model).__name__} is no plain matrix, but {type(head).__name__}")
    model.set_output_embeddings(WideHead(head))
    return True
