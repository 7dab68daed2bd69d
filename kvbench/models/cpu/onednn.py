"""Linear layers on a CPU whose results do not depend on how many rows are multiplied at once.

torch's own product of one row is another routine than that of several, with other last bits, and slower ones lie
between the two. oneDNN with a weight that was laid out for it once sums every row alike, whatever its company, and is
faster for few rows and for many. That nobody promises it: `alike` tries it on every shape of a model.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

FEWEST = 4
"""Rows that are multiplied at least: fewer take as long or longer, and one is summed in another order."""
TRIED = (1, 2, 3, 5, 8, 13, 16, 24, 33, 64, 100)
"""Numbers of rows that must give the bits of `TOGETHER` rows."""
TOGETHER = 128


class OneDnnLinear(nn.Module):
    """A linear layer in float32 that holds its weight in oneDNN's order only."""

    def __init__(self, plain: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features, self.bias = plain.in_features, plain.out_features, plain.bias
        self._laid_out = torch.ops.mkldnn._reorder_linear_weight(plain.weight.detach().contiguous(), None)

    @property
    def weight(self) -> Float[Tensor, "out_features in_features"]:
        """The matrix, in the usual order, made anew each time."""
        return self._laid_out.to_dense()

    def forward(self, inputs: Float[Tensor, "*rows in_features"]) -> Float[Tensor, "*rows out_features"]:
        """Multiply, with more rows where there are few."""
        rows = inputs.reshape(-1, self.in_features)
        given = rows.shape[0]
        if given == 1:
            rows = rows.expand(FEWEST, -1)
        elif given < FEWEST:
            rows = F.pad(rows, (0, 0, 0, FEWEST - given))
        found = torch.ops.mkldnn._linear_pointwise(rows, self._laid_out, self.bias, "none", [], "")
        return found[:given].view(*inputs.shape[:-1], self.out_features)


def use_onednn(model: Any) -> None:
    """Replace the linear layers of a float32 model on a CPU, where torch has oneDNN; else leave it as it is."""
    weights = model.get_input_embeddings().weight
    if weights.device.type != "cpu" or weights.dtype != torch.float32 or not torch.backends.mkldnn.is_available():
        return
    for module in list(model.modules()):
        for name, part in list(module.named_children()):
            if type(part) is nn.Linear and part.weight.dtype == torch.float32:
                setattr(module, name, OneDnnLinear(part))


@torch.inference_mode()
def alike(model: Any) -> bool:
    """Whether all linear layers are such and give a row the same bits in any company: one of each shape is tried."""
    layers = [part for part in model.modules() if isinstance(part, nn.Linear | OneDnnLinear)]
    shapes = {(one.out_features, one.in_features): one for one in layers if isinstance(one, OneDnnLinear)}
    if not shapes or any(isinstance(one, nn.Linear) for one in layers):
        return False
    generator = torch.Generator().manual_seed(0)
    for layer in shapes.values():
        inputs = torch.randn(TOGETHER, layer.in_features, generator=generator)
        whole = layer(inputs)
        if not all(torch.equal(layer(inputs[:rows]), whole[:rows]) for rows in TRIED):
            return False
    return True
