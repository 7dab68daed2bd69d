"""Parts that the programs of our Triton kernels share: how much one holds at a time, and steps that several take.

Set TRITON_INTERPRET=1 before this module is imported to run the kernels on a CPU.
"""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false
from collections.abc import Callable, Iterable
from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor
from triton.runtime import interpreter
from triton.runtime.autotuner import Autotuner

from kvbench.support.errors import UserError

INTERPRETED = triton.knobs.runtime.interpret if hasattr(triton, "knobs") else False
"""Triton's interpreter multiplies the bits of bfloat16 numbers, so there everything is float32 before a product."""
if INTERPRETED:
    # Triton 3.6 has numpy convert an array of one number to the end of a loop, which numpy 2.4 refuses.
    _patch_lang_tensor = interpreter._patch_lang_tensor

    def _with_index(tensor: Any, *scope: Any) -> None:
        """Replace what `_patch_lang_tensor` replaces, and read the one number."""
        _patch_lang_tensor(tensor, *scope)
        tensor.__index__ = lambda number: number.handle.data.item()

    interpreter._patch_lang_tensor = _with_index
ROWS = 16
"""Rows that a program takes at a time, the smallest size of a product."""
HALF = {"BLOCK": 64, "num_warps": 4, "num_stages": 3}
WIDE = {"BLOCK": 32, "num_warps": 8, "num_stages": 2}
"""Tokens that a program holds at a time, its warps, and the blocks that it loads ahead, in half precision and in
float32: twice the bytes must fit into the registers and the shared memory of the same GPU (`make compile-kernels`)."""
LAUNCHES = 10
"""Launches of a kernel that are timed for each of its sizes."""


def check(device: torch.device, dtype: torch.dtype) -> None:
    """Raise UserError where the kernels cannot run: in float64, or on a CPU without Triton's interpreter."""
    if dtype == torch.float64:
        raise UserError("model.kernels=triton computes in float32, not in float64: use model.kernels=torch")
    if device.type != "cuda" and not INTERPRETED:
        raise UserError(
            f"model.kernels=triton runs on a GPU, not on {device.type}: use model.kernels=torch, or set "
            "TRITON_INTERPRET=1 to run the kernels slowly in Triton's interpreter"
        )


class Tuned(Autotuner):
    """A kernel that runs with the fastest of several sizes in half precision, and with the last ones in float32.

    sizes: their `num_warps` and `num_stages`, and numbers of the kernel. All must add in the same order, so that none
    changes a bit. The first launch on a machine with these arguments (`key`) and dtypes times them; Triton keeps the
    times in its folder. An argument `length_class` lets short prompts not decide for long ones.
    """

    def __init__(self, kernel: Any, sizes: Iterable[dict[str, int]], key: list[str]) -> None:
        configs = [
            triton.Config({name: one[name] for name in one if name.isupper()}, one["num_warps"], one["num_stages"])
            for one in sizes
        ]
        prune = {"early_config_prune": _fitting}
        super().__init__(
            kernel, kernel.arg_names, configs, key, None, None, prune_configs_by=prune, do_bench=_milliseconds,
            cache_results=True,
        )  # fmt: skip
        self._fastest: dict[tuple[Any, ...], dict[str, int]] = {}

    def run(self, *arguments: Any, **options: Any) -> None:
        """Launch the kernel; what Triton looks up in every launch is remembered, since a host takes 25 us for it."""
        of = arguments[0].dtype, *(options[name] for name in self.keys)
        if of in self._fastest:
            self.fn.run(*arguments, **options, **self._fastest[of])
        else:
            super().run(*arguments, **options)
            self._fastest[of] = self.best_config.all_kwargs()


def _fitting(configs: list[triton.Config], arguments: dict[str, Any], **constants: Any) -> list[triton.Config]:
    """Return the sizes that are tried: those whose blocks fit into the shared memory of an A100."""
    configs = configs[-1:] if arguments["queries"].dtype == torch.float32 else configs[:-1]
    most = 64 * 3 * 256 // constants["PADDED_DIM"]
    fits = [config for config in configs if config.kwargs["BLOCK"] * config.num_stages <= most]
    return fits[:1] if INTERPRETED else fits


def _milliseconds(launch: Callable[[], object], quantiles: object) -> list[float]:
    """Return what launches take one after the other; Triton's own clock takes memory that a plan does not know."""
    if INTERPRETED:
        return [0.0]
    launch()
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(LAUNCHES):
        launch()
    stop.record()
    stop.synchronize()
    return [start.elapsed_time(stop)]


def length_class(pairs: int) -> int:
    """Return the power of two from `pairs` on, of the longest segment: 1,024 to 65,536, so that seven are timed."""
    return min(max(triton.next_power_of_2(pairs), 1024), 65536)


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
