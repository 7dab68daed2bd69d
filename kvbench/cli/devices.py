"""What `kvbench doctor` finds out about devices by trying: which dtypes multiply, which attention kernels run."""

import time
import warnings
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec
from typing import Any

from kvbench.cli.finding import Finding
from kvbench.support.errors import UserError

DTYPES = {"float64": 1e-12, "float32": 1e-4, "bfloat16": 5e-2, "float16": 5e-3}
"""Values of `model.dtype`, and by how much a sum of `SIZE` random products may be wrong, in standard deviations."""
SIZE = 256
KERNELS = {"flash": "FLASH_ATTENTION", "efficient": "EFFICIENT_ATTENTION", "math": "MATH"}
"""Kernels that torch's fused attention chooses from here; cuDNN's is switched off, it is chosen by timing."""


def devices() -> Iterator[Finding]:
    """The devices that torch sees and what works on each. Nothing where torch does not load."""
    try:
        import torch
    except Exception:  # said with the packages, and the command there
        return
    yield Finding("ok", "cpu", f"{torch.get_num_threads()} threads")
    yield from _tried(torch, "cpu")
    if not torch.cuda.is_available():
        yield Finding("-", "cuda", "no GPU seen by torch: runs use the CPU, model.device=cuda is refused")
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        name, found = f"cuda:{index}", torch.cuda.get_device_properties(index)
        free, total = (size / 2**30 for size in torch.cuda.mem_get_info(index))
        yield Finding("ok", name, f"{found.name}, {free:.0f} of {total:.0f} GiB free")
        yield from _tried(torch, name)
    if find_spec("triton") is None:
        yield Finding(
            "-", "triton", "not installed: no model.kernels=triton on a GPU", "pip install 'kvbench[kernels]'"
        )
    else:
        yield Finding("ok", "triton", metadata.version("triton"))


def _tried(torch: Any, device: str) -> Iterator[Finding]:
    """What a small product and a small attention do in each dtype."""
    works, fails = [], []
    for name, tolerance in DTYPES.items():
        try:
            works.append(f"{name} {_multiply(torch, device, getattr(torch, name), tolerance):.2f} ms")
        except Exception as error:  # an unsupported dtype raises what it likes
            fails.append(f"{name} ({_first_line(error)})")
    said = ", ".join(works) + (f"; not {', '.join(fails)}: choose another with model.dtype" if fails else "")
    yield Finding("-" if fails else "ok", f"{device} dtypes", f"{SIZE} x {SIZE} product: {said}")
    for name in ("float32", "bfloat16", "float16"):
        kernels = [kernel for kernel in KERNELS if _attends(torch, device, getattr(torch, name), kernel)]
        yield Finding("ok" if kernels else "-", f"{device} sdpa {name}", ", ".join(kernels) or "no kernel runs")


def _multiply(torch: Any, device: str, dtype: Any, tolerance: float) -> float:
    """Milliseconds of the fastest of three products. Raises ValueError for a wrong result."""
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(SIZE, SIZE, generator=generator, dtype=torch.float64) for _ in range(2))
    fast = [part.to(device, dtype) for part in (left, right)]
    taken = []
    for _ in range(3):
        start = time.perf_counter()
        product = fast[0] @ fast[1]
        product[0, 0].item()  # waits for the device
        taken.append(time.perf_counter() - start)
    expected = fast[0].double().cpu() @ fast[1].double().cpu()
    error = ((product.double().cpu() - expected).abs().max() / SIZE**0.5).item()
    if not error < tolerance:
        raise UserError(f"a product is wrong by {error:.1e}")
    return 1000 * min(taken)


def _attends(torch: Any, device: str, dtype: Any, kernel: str) -> bool:
    """Whether fused attention with a causal mask runs with one kernel alone."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    part = torch.ones(1, 2, 16, 64, device=device, dtype=dtype)
    try:
        with warnings.catch_warnings(), sdpa_kernel(getattr(SDPBackend, KERNELS[kernel])):
            warnings.simplefilter("ignore")
            output = torch.nn.functional.scaled_dot_product_attention(part, part, part, is_causal=True)
            return bool((output.float() - 1).abs().max().item() < 0.01)
    except Exception:
        return False


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:80]}"
