"""Random layers and segments on the device, in buffers whose other places are NaN: what is read by mistake shows."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Layer:
    """A causal layer; `outputs` and `lse` are those of the newest rows, in the type that a model would give them."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    outputs: Tensor
    lse: Tensor
    scaling: float

    def arrays(self, dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """The five arrays, in another type if asked."""
        every = (self.queries, self.keys, self.values, self.outputs, self.lse)
        if dtype is None:
            return every
        queries, keys, values, outputs, lse = (part.to(dtype) for part in every)
        return queries, keys, values, outputs, lse


def layer(
    rows: int,
    tokens: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    device: torch.device,
    softcap: float | None = None,
    sinks: bool = False,
) -> Layer:
    """Values lie off zero, so that squares of differences would cancel; rows are the newest of the tokens."""
    generator = torch.Generator(device).manual_seed(rows + tokens + head_dim)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device)

    room = torch.full((2, kv_heads, tokens + 5, head_dim), torch.nan, device=device, dtype=dtype)
    room[0, :, :tokens], room[1, :, :tokens] = drawn(kv_heads, tokens, head_dim), drawn(kv_heads, tokens, head_dim) + 3
    keys, values = room[0, :, :tokens], room[1, :, :tokens]
    queries = (drawn(heads, rows, head_dim) * 1.5).to(dtype)
    group, scaling = heads // kv_heads, head_dim**-0.5
    logits = queries.double() @ keys.double().repeat_interleave(group, 0).mT * scaling
    if softcap is not None:
        logits = (logits / softcap).tanh() * softcap
    stand = torch.arange(tokens, device=device)
    logits = logits.masked_fill(stand > stand[tokens - rows :, None], -torch.inf)
    lse = logits.logsumexp(-1)
    if sinks:
        lse = torch.logaddexp(lse, drawn(heads, 1).double())
    outputs = (logits - lse[..., None]).exp() @ values.double().repeat_interleave(group, 0)
    return Layer(queries, keys, values, outputs.float(), lse.float(), scaling)


@dataclass(frozen=True)
class Segments:
    """Queries, and pairs of segments of different lengths."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    starts: Tensor
    lengths: Tensor

    @property
    def arrays(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """As `ragged_decode` takes them."""
        return self.queries, self.keys, self.values, self.starts, self.lengths


def segments(
    lengths: Sequence[int], rows: int, head_dim: int, dtype: torch.dtype, device: torch.device, gap: int = 3
) -> Segments:
    """`gap` places of NaN lie between segments; packages that take no gaps are given none."""
    generator = torch.Generator(device).manual_seed(rows + head_dim + sum(lengths))
    starts, total = [], gap
    for length in lengths:
        starts.append(total)
        total += length + gap
    keys, values = torch.full((2, total, head_dim), torch.nan, dtype=dtype, device=device)
    for start, length in zip(starts, lengths, strict=True):
        for buffer in (keys, values):
            part = torch.randn(length, head_dim, generator=generator, device=device)
            buffer[start : start + length] = part.to(dtype)
    queries = torch.randn(len(lengths), rows, head_dim, generator=generator, device=device).to(dtype)
    whole = (torch.tensor(part, device=device) for part in (starts, list(lengths)))
    return Segments(queries, keys, values, *whole)
