"""Numerics of a loaded model: the same bits in every run on the same machine, and logits in float32."""

import os
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kvbench.support.errors import UserError

WORKSPACE = ":4096:8"
"""cuBLAS splits its sums differently from call to call unless its workspace has one of two fixed sizes."""
ROWS = 2**14
"""Rows of the matrix that are widened at a time."""


def make_deterministic() -> dict[str, Any]:
    """Set the switches for deterministic results in this process, and return their values.

    cuDNN's attention kernels are chosen by timing. An existing value of `CUBLAS_WORKSPACE_CONFIG` is kept; it only has
    an effect before the first use of CUDA.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", WORKSPACE)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore  # nothing here reads such memory
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = False
    torch.backends.cuda.enable_cudnn_sdp(False)
    return {
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "tf32": torch.backends.cuda.matmul.allow_tf32 or torch.backends.cudnn.allow_tf32,
        "sdpa_kernels": [
            name.removeprefix("mem_")
            for name in ("flash", "mem_efficient", "math", "cudnn")
            if getattr(torch.backends.cuda, f"{name}_sdp_enabled")()
        ],
    }


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
            return logits if self.bias is None else logits + self.bias.float()
        wide = hidden.to(self.weight.device, torch.float32)
        logits = torch.cat([wide @ part.float().mT for part in self.weight.split(ROWS)], dim=-1)
        return logits if self.bias is None else logits + self.bias.float()


def widen(model: Any) -> bool:
    """Replace the output layer of a half precision model; returns whether it was replaced.

    Raises ValueError for a model whose output layer is not a plain matrix.
    """
    head = model.get_output_embeddings()
    if head is not None and head.weight.itemsize > 2:
        return False
    if not isinstance(head, nn.Linear):
        raise UserError(f"the output layer of {type(model).__name__} is no plain matrix, but {type(head).__name__}")
    model.set_output_embeddings(WideHead(head))
    return True
