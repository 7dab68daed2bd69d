"""Linear layers of a float32 model on a CPU, in which a row should have the same bits in any number of rows.

torch's own product and oneDNN's, with weights in its own layout, sum in different orders. Which one is faster depends
on the processor and on the number of rows.
"""

from abc import ABC, abstractmethod
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from kvbench.models import bridge
from kvbench.support.errors import UserError
from kvbench.support.named import member

Products = Literal["onednn", "torch", "mixed"]
"""oneDNN's products, torch's, or torch's for prompts and oneDNN's for decode batches."""

SAFE_ROWS = 4
"""Fewest rows of a product where a single row is summed in another order than one of many."""
LINEAR_ROWS = (1, 2, 3, 5, 8, 13, 16, 24, 33, 64, 100)
"""Numbers of rows that must give the bits of `TOGETHER` rows in a linear layer."""
TOGETHER = 128


class PaddedLinear(nn.Module, ABC):
    """A linear layer that multiplies at least `least_rows` rows: one, if it has the bits of one of many in a trial."""

    def __init__(self, plain: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features, self.bias = plain.in_features, plain.out_features, plain.bias
        self.least_rows = SAFE_ROWS

    def forward(self, inputs: Float[Tensor, "*rows in_features"]) -> Float[Tensor, "*rows out_features"]:
        """Multiply; fewer rows than `least_rows` are padded."""
        rows = inputs.reshape(-1, self.in_features)
        num_rows, missing = rows.shape[0], self.least_rows - rows.shape[0]
        if missing > 0:
            rows = rows.expand(self.least_rows, -1) if num_rows == 1 else F.pad(rows, (0, 0, 0, missing))
        return self.multiply(rows)[:num_rows].view(*inputs.shape[:-1], self.out_features)

    @abstractmethod
    def multiply(self, rows: Float[Tensor, "rows in_features"]) -> Float[Tensor, "rows out_features"]:
        """Return the product, with the bias if there is one."""


class TorchLinear(PaddedLinear):
    """torch's own product."""

    def __init__(self, plain: nn.Linear) -> None:
        super().__init__(plain)
        self.weight = plain.weight

    def multiply(self, rows: Float[Tensor, "rows in_features"]) -> Float[Tensor, "rows out_features"]:
        return F.linear(rows, self.weight, self.bias)


class OneDnnLinear(PaddedLinear):
    """oneDNN's product, with a weight in its own layout."""

    def __init__(self, plain: nn.Linear) -> None:
        super().__init__(plain)
        self._laid_out = torch.ops.mkldnn._reorder_linear_weight(plain.weight.detach().contiguous(), None)

    @property
    def weight(self) -> Float[Tensor, "out_features in_features"]:
        """The matrix in the usual layout, converted at each call."""
        return self._laid_out.to_dense()

    def multiply(self, rows: Float[Tensor, "rows in_features"]) -> Float[Tensor, "rows out_features"]:
        return torch.ops.mkldnn._linear_pointwise(rows, self._laid_out, self.bias, "none", [], "")


class MixedLinear(OneDnnLinear):
    """torch's product in passes over a prompt alone, oneDNN's over decode batches; the weight is stored twice."""

    def __init__(self, plain: nn.Linear) -> None:
        super().__init__(plain)
        self._plain = plain.weight

    @property
    def weight(self) -> Float[Tensor, "out_features in_features"]:
        """The matrix in the usual layout."""
        return self._plain

    def multiply(self, rows: Float[Tensor, "rows in_features"]) -> Float[Tensor, "rows out_features"]:
        return F.linear(rows, self._plain, self.bias) if bridge.reads_alone() else super().multiply(rows)

    @property
    def least_rows(self) -> int:
        """That of the product in use."""
        return SAFE_ROWS if bridge.reads_alone() else self._least_rows

    @least_rows.setter
    def least_rows(self, rows: int) -> None:
        self._least_rows = rows


LAYERS: dict[Products, type[PaddedLinear]] = {"onednn": OneDnnLinear, "torch": TorchLinear, "mixed": MixedLinear}


def has_products(model: Any) -> bool:
    """Return whether the products of a model can be chosen: float32 on a CPU, and a torch with oneDNN."""
    weights = model.get_input_embeddings().weight
    return weights.device.type == "cpu" and weights.dtype == torch.float32 and torch.backends.mkldnn.is_available()


def chosen_products(
    model: Any, setting: Products | Literal["auto"], recorded: Products | None = None
) -> Products | None:
    """Return the products of a loaded model by `model.products`; None where there is no choice.

    recorded: what `auto` takes without timing, as the earlier rows of a folder were made so; what times products is
    an extra, without which `auto` is `onednn`. Raises UserError for products that the model cannot have.
    """
    if not has_products(model):
        if setting in ("onednn", "mixed"):
            weights = model.get_input_embeddings().weight
            where = f"{str(weights.dtype).removeprefix('torch.')} on {weights.device.type}"
            raise UserError(f"model.products={setting} needs float32 on a CPU, not {where}; allowed here: auto, torch")
        return None
    if setting != "auto":
        return setting
    head, fastest = model.get_output_embeddings(), member("timing", "fastest_products")
    if recorded is not None or fastest is None:
        return recorded or "onednn"
    return fastest.load()([layer for _, _, layer in plain_layers(model) if layer is not head])


def plain_layers(model: Any) -> list[tuple[nn.Module, str, nn.Linear]]:
    """Return the float32 linear layers of torch in a model: the module that owns each, its name there, the layer."""
    return [
        (module, name, part)
        for module in model.modules()
        for name, part in module.named_children()
        if type(part) is nn.Linear and part.weight.dtype == torch.float32
    ]


def use_products(model: Any, products: Products) -> None:
    """Replace the linear layers of a model that `has_products`; one trial for each shape says what `least_rows` is."""
    least = dict[tuple[int, int], int]()
    for module, name, plain in plain_layers(model):
        layer, shape = LAYERS[products](plain), (plain.out_features, plain.in_features)
        if shape not in least:
            least[shape] = _least_rows(layer)
        layer.least_rows = least[shape]
        setattr(module, name, layer)


@torch.inference_mode()
def _least_rows(layer: PaddedLinear) -> int:
    """1 if one to three rows have the bits that they have among more, tried on random numbers; else `SAFE_ROWS`."""
    rows = torch.randn(2 * SAFE_ROWS, layer.in_features, generator=torch.Generator().manual_seed(0))
    outputs = layer.multiply(rows)
    fewer = range(1, SAFE_ROWS)
    return 1 if all(torch.equal(layer.multiply(rows[:count]), outputs[:count]) for count in fewer) else SAFE_ROWS


@torch.inference_mode()
def linear_layers_agree(model: Any) -> bool:
    """Return whether all linear layers are padded ones and a row has the same bits in any batch, tried for each
    shape.
    """
    layers = [module for module in model.modules() if isinstance(module, nn.Linear | PaddedLinear)]
    by_shape = {(layer.out_features, layer.in_features): layer for layer in layers if isinstance(layer, PaddedLinear)}
    if not by_shape or any(isinstance(layer, nn.Linear) for layer in layers):
        return False
    return all(map(rows_agree, by_shape.values()))


def rows_agree(layer: PaddedLinear) -> bool:
    """Return whether a row has the same bits in a product of few and of many rows, tried on random numbers."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(TOGETHER, layer.in_features, generator=generator)
    outputs = layer(inputs)
    return all(torch.equal(layer(inputs[:rows]), outputs[:rows]) for rows in LINEAR_ROWS)
