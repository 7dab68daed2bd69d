"""The twins that `model.kernels` names, without torch; what each does: `choice.py`."""

from typing import Literal

Kernels = Literal["torch", "triton", "flash_attn", "varlen"]
