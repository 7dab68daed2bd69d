"""The output projection of a layer's attention: what makes of the outputs of all heads the output of the layer."""

from typing import Any

from jaxtyping import Float
from torch import Tensor

from kvbench.support.errors import UserError

NAMES = ("o_proj", "out_proj", "dense", "c_proj", "wo")
"""What model classes call it."""


def projection(model: Any, layer: int, width: int) -> Float[Tensor, "hidden width"]:
    """The matrix W of a layer: y = W concat_h(o_h), `width` = heads x head_dim; a bias or a norm behind it left out.

    Raises ValueError for a model whose attention has no such plain matrix.
    """
    for module in model.modules():
        if getattr(module, "layer_idx", None) != layer:
            continue
        for name in NAMES:
            weight = getattr(getattr(module, name, None), "weight", None)
            if weight is not None and weight.is_floating_point() and weight.ndim == 2 and weight.shape[1] == width:
                return weight.detach()
    raise UserError(
        f"{type(model).__name__} has no output projection of {width} columns in the attention of layer {layer} "
        f"(looked for {', '.join(NAMES)}): what the layer's output loses is not known"
    )
