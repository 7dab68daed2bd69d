"""Switches of the whole process: deterministic results, threads, and memory that was freed."""

import ctypes
import os
from functools import cache
from typing import Any

import torch

MMAP_THRESHOLD, TRIM_THRESHOLD = (-3, 2**25), (-1, 2**28)
"""Options of `mallopt`, as in malloc.h, with bytes: the largest block that is allocated on the heap (glibc accepts no
more), and what is kept at its end for later."""
WORKSPACE = ":4096:8"
"""cuBLAS splits its sums differently from call to call unless its workspace has one of two fixed sizes."""


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


@cache
def default_threads() -> int:
    """Return the number of threads that torch chose itself, read before anything changes it."""
    return torch.get_num_threads()


def keep_freed_memory() -> bool:
    """Let the C library keep up to 256 MiB of freed memory; returns whether it has such a setting (glibc has).

    A prefill allocates and frees megabytes in each layer. By default glibc returns each block to the kernel, which
    zeroes the next one page by page: a tenth of the time of a prefill.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all([mallopt(*MMAP_THRESHOLD), mallopt(*TRIM_THRESHOLD)])
