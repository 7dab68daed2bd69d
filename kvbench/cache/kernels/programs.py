"""What the programs of all our Triton kernels share: products, soft caps, and the sizes of a head.

Set TRITON_INTERPRET=1 before this module is imported to run them on a CPU.
"""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from kvbench.support.errors import UserError

INTERPRETED = triton.knobs.runtime.interpret if hasattr(triton, "knobs") else False
"""The interpreter multiplies the bits of bfloat16 numbers, so there everything is float32 before a product."""
ROWS = 16
"""Rows that a program takes at a time, the fewest of a product."""


def of_heads(queries: Float[Tensor, "*rows head_dim"]) -> dict[str, int]:
    """The sizes that a kernel is compiled for. Raises ValueError for float64, and for head_dim above 256."""
    head_dim = queries.shape[-1]
    if queries.dtype == torch.float64 or head_dim > 256:
        raise UserError(f"no kernel for {queries.dtype} of head_dim {head_dim}: use model.kernels=torch")
    return {"HEAD_DIM": head_dim, "PADDED_DIM": max(16, triton.next_power_of_2(head_dim)), "ROWS": ROWS}


@triton.jit
def product(left, right, UPCAST: tl.constexpr):
    """A matrix product that sums in float32."""
    if UPCAST:
        left, right = left.to(tl.float32), right.to(tl.float32)
    return tl.dot(left, right, input_precision="ieee")


@triton.jit
def soft_capped(z, softcap):
    """softcap tanh(z / softcap), without overflow."""
    e = tl.exp(-2 * tl.abs(z) / softcap)
    return softcap * (1 - e) / (1 + e) * tl.where(z < 0, -1.0, 1.0)
