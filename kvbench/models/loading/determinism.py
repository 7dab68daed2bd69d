"""The switches of torch that let the same run give the same bits again on the same machine."""

import os
from typing import Any

import torch

WORKSPACE = ":4096:8"
"""cuBLAS splits its sums differently from call to call unless its workspace has one of two fixed sizes."""


def make_deterministic() -> dict[str, Any]:
    """Set the switches, for the whole process, and return them as they stand.

    No TF32 and no reduced-precision sums, no choice of kernels by timing, deterministic kernels where there are any (a
    warning where not), and the fused attention kernels of torch without cuDNN's, which are chosen by timing.
    `CUBLAS_WORKSPACE_CONFIG` is kept where it is set already; it counts only before the first use of CUDA.
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
            name
            for name, on in (
                ("flash", torch.backends.cuda.flash_sdp_enabled()),
                ("efficient", torch.backends.cuda.mem_efficient_sdp_enabled()),
                ("math", torch.backends.cuda.math_sdp_enabled()),
                ("cudnn", torch.backends.cuda.cudnn_sdp_enabled()),
            )
            if on
        ],
    }
