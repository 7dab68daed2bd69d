"""Floats of few bits, as servers hold keys and values.

    fp8    e4m3, times a float32 scale of all keys, and one of all values, of a layer: the largest magnitude / 448.
           A calibrated checkpoint gives vLLM's `kv_cache_dtype=fp8` these two scales, which all its attention kernels
           take; scales of heads are for one kernel only. Without a checkpoint vLLM uses 1, which cuts off above 448.
    nvfp4  E2M1 in blocks of 16 numbers in memory order, two a byte, the first in the low bits; times an e4m3 scale of
           the block, the largest magnitude / 6 in units of the float32 scale of all keys, or values, of a layer: the
           largest magnitude / (6 * 448)

Here the scales follow the pairs that are held, so that nothing is cut off. Numbers are rounded to the nearest, ties to
even. NVIDIA's Model Optimizer gives the same codes to the bit (`scripts/golden_stores.py`); of a block of zeros, where
any scale does, it writes another scale.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Float8e4m3fn, Shaped
from torch import Tensor

E4M3 = torch.float8_e4m3fn
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""The magnitudes of a number of 4 bits, by its lower three; the highest is the sign."""
LARGEST = torch.finfo(E4M3).max
LEAST_SCALE = 2**-9
"""The smallest e4m3 number above 0: no block has a smaller scale, as in Model Optimizer."""


@dataclass(frozen=True)
class FloatCodes:
    """Numbers in groups. packed: e4m3, or bytes of two E2M1. scale: of each group, for the latter. top: of all."""

    packed: Shaped[Tensor, "groups bytes"]
    scale: Float8e4m3fn[Tensor, "groups 1"] | None
    top: Float[Tensor, ""]
    dtype: torch.dtype

    def numbers(self) -> Float[Tensor, "groups members"]:
        """Return the numbers as read, in `dtype`."""
        if self.scale is None:
            return (self.packed.float() * self.top).to(self.dtype)
        signed = torch.tensor([*E2M1, *(-number for number in E2M1)], device=self.packed.device)
        of_byte = torch.stack((signed.repeat(16), signed.repeat_interleave(16)), dim=-1)
        numbers = of_byte[self.packed.int()].flatten(1)
        return (numbers * (self.scale.float() * self.top)).to(self.dtype)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors that are held."""
        return self.packed, self.top, *(() if self.scale is None else (self.scale,))


def top(numbers: Float[Tensor, "..."], bits: int) -> Float[Tensor, ""]:
    """Return the scale of all numbers, with which the largest is the largest that the format has; 1 if all are 0."""
    largest = numbers.abs().amax().float() if numbers.numel() else numbers.new_zeros((), dtype=torch.float32)
    scale = largest / (LARGEST if bits == 8 else LARGEST * E2M1[-1])
    return torch.where(scale > 0, scale, 1.0)


def encode(groups: Float[Tensor, "groups members"], bits: int, top: Float[Tensor, ""]) -> FloatCodes:
    """Codes of numbers, group by group. top: the scale of all."""
    wide = groups.float()
    if bits == 8:
        return FloatCodes((wide / top).clamp(-LARGEST, LARGEST).to(E4M3), None, top, groups.dtype)
    blocks = wide.abs().amax(dim=-1, keepdim=True) / (E2M1[-1] * top)
    scale = blocks.clamp(LEAST_SCALE, LARGEST).to(E4M3)
    codes = e2m1(wide / (scale.float() * top))
    return FloatCodes(codes[:, ::2] | codes[:, 1::2] << 4, scale, top, groups.dtype)


def e2m1(numbers: Float[Tensor, "*shape"]) -> Shaped[Tensor, "*shape"]:
    """Return the nearest numbers of 4 bits, ties to even, as bytes; magnitudes above 6 become 6."""
    size = numbers.abs().clamp(max=E2M1[-1])
    in_steps = torch.where(size < 2, size * 2, torch.where(size < 4, size + 2, size / 2 + 4))  # of 0.5, 1 and 2
    return in_steps.round().to(torch.uint8) | (numbers < 0).to(torch.uint8) << 3
