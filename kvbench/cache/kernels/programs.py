"""Parts that the programs of our Triton kernels share: how much one holds at a time, and steps that several take.

Set TRITON_INTERPRET=1 before this module is imported to run the kernels on a CPU.
"""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false
import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from kvbench.support.errors import UserError

INTERPRETED = triton.knobs.runtime.interpret if hasattr(triton, "knobs") else False
"""Triton's interpreter multiplies the bits of bfloat16 numbers, so there everything is float32 before a product."""
ROWS = 16
"""Rows that a program takes at a time, the smallest size of a product."""
HALF = {"BLOCK": 64, "num_warps": 4, "num_stages": 3}
WIDE = {"BLOCK": 32, "num_warps": 8, "num_stages": 2}
"""Tokens that a program holds at a time, its warps, and the blocks that it loads ahead, in half precision and in
float32: twice the bytes must fit into the registers and the shared memory of the same GPU (`make compile-kernels`)."""

MEASURED: dict[tuple[str, tuple[int, int], int], dict[str, int]] = {}
"""The fastest of these by kernel, compute capability of the GPU and bytes of a number, written by
`make gpu-first-hour PARTS=blocks`; a GPU without a line takes HALF and WIDE."""


def launch_sizes(kernel: str, queries: Tensor) -> dict[str, int]:
    """Return the block size, warps and stages of a kernel for these queries."""
    if MEASURED:
        capability = torch.cuda.get_device_capability(queries.device) if queries.is_cuda else (0, 0)
        if (measured := MEASURED.get((kernel, capability, queries.itemsize))) is not None:
            return measured
    return WIDE if queries.dtype == torch.float32 else HALF


def compiled_sizes(queries: Float[Tensor, "*rows head_dim"]) -> dict[str, int]:
    """Return the sizes that a kernel is compiled for. Raises UserError for float64, and for head_dim above 256."""
    head_dim = queries.shape[-1]
    if queries.dtype == torch.float64 or head_dim > 256:
        raise UserError(f"no kernel for {queries.dtype} of head_dim {head_dim}: use model.kernels=torch")
    return {"HEAD_DIM": head_dim, "PADDED_DIM": max(16, triton.next_power_of_2(head_dim)), "ROWS": ROWS}


@triton.jit
def product(left, right, UPCAST: tl.constexpr):
    """Return a matrix product that sums in float32."""
    if UPCAST:
        left, right = left.to(tl.float32), right.to(tl.float32)
    return tl.dot(left, right, input_precision="ieee")


@triton.jit
def logits(q, k_columns, scaling, softcap, CAPPED: tl.constexpr, UPCAST: tl.constexpr):
    """Scaled logits of rows and columns; if CAPPED softcap tanh(z / softcap), without overflow."""
    z = product(q, k_columns, UPCAST) * scaling
    if CAPPED:
        e = tl.exp(-2 * tl.abs(z) / softcap)
        z = softcap * (1 - e) / (1 + e) * tl.where(z < 0, -1.0, 1.0)
    return z


@triton.jit
def softmax_step(top, mass, total, z, v, UPCAST: tl.constexpr, FINE: tl.constexpr = False):
    """Return one step of an online softmax: a block of logits z [rows, pairs] and values v [pairs, dims] joins the
    largest logit so far, the sum of exp(logit - top), and the values weighted by them. FINE: half precision weights are
    split.
    """
    new_top = tl.maximum(top, tl.max(z, 1))
    shrink = tl.exp(top - new_top)
    p = tl.exp(z - new_top[:, None])
    total = total * shrink[:, None] + product(p.to(v.dtype), v, UPCAST)
    if FINE:
        total += product((p - p.to(v.dtype).to(tl.float32)).to(v.dtype), v, UPCAST)
    return new_top, mass * shrink + tl.sum(p, 1), total


@triton.jit
def block_of(pairs, start, begin, length, dims, HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr):
    """Return a block of keys or values of a segment, [BLOCK, dims]; 0 behind its pairs and dimensions."""
    slot = begin + tl.arange(0, BLOCK)
    inside = (slot[:, None] < length) & (dims[None, :] < HEAD_DIM)
    place = (start + slot[:, None]) * HEAD_DIM + dims[None, :]
    return tl.load(pairs + place, mask=inside, other=0.0).to(tl.float32)
