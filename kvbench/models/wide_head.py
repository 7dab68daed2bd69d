"""The output layer of a half precision model in float32."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kvbench.support.errors import UserError

HEAD_ROWS = 2**14
"""Rows of the output layer's matrix that are widened at a time."""


class WideHead(nn.Module):
    """The output layer in float32 for models in half precision; its weight is shared, not copied.

    In bfloat16 the two best logits are often equal, and the first of them would be chosen. transformers' own scaling
    and soft-capping of logits come after the output layer and so run in float32 too.
    """

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias

    def forward(self, hidden: Float[Tensor, "*rows hidden"]) -> Float[Tensor, "*rows vocabulary"]:
        """Multiply in half precision and sum in float32, on a GPU; elsewhere widen the weight a few rows at a time.

        Products of half precision numbers are exact in float32, so that both differ in the order of the sum only.
        """
        if self.weight.is_cuda and hidden.dtype == self.weight.dtype:
            rows = hidden.to(self.weight.device).flatten(0, -2)
            logits = torch.mm(rows, self.weight.mT, out_dtype=torch.float32).unflatten(0, hidden.shape[:-1])
        else:
            wide = hidden.to(self.weight.device, torch.float32)
            logits = torch.cat([wide @ part.float().mT for part in self.weight.split(HEAD_ROWS)], dim=-1)
        return logits if self.bias is None else logits + self.bias.float()


def widen(model: Any) -> bool:
    """Replace the output layer of a half precision model; returns whether it was replaced.

    Raises UserError for a model whose output layer is not a plain matrix.
    """
    head = model.get_output_embeddings()
    if head is not None and head.weight.itemsize > 2:
        return False
    if not isinstance(head, nn.Linear):
        raise UserError(f"the output layer of {type(model).__name__} is no plain matrix, but {type(head).__name__}")
    model.set_output_embeddings(WideHead(head))
    return True
