"""Quantised KV caches: instead of eviction or after it, so that methods can be compared at equal bytes.

The minimum of a group of numbers and the scale = (maximum - minimum) / (2^bits - 1) are stored in the model's dtype. A
number becomes the code round((x - minimum) / scale) of `bits` bits, packed into bytes; it dequantises to code * scale +
minimum.

    int8 int4 int2  as transformers' `QuantizedCache` with the backend quanto (`QuantoQuantizedLayer`: axis 0, groups of
                    64; 4 and 2 bits): keys and values in memory order, head by head, 64 numbers per group
    kivi4 kivi2     KIVI (Liu et al. 2024, https://arxiv.org/abs/2402.02750, algorithm 1): keys by channel, 32 tokens
    per
                    group; values by token, 32 channels per group; the newest tokens % 128 keys and the newest 128
                    values are not quantised

Codes are computed in float32 or wider. In float32 they equal those of quanto 0.2.7 to the bit; in bfloat16, quanto
computes in bfloat16 and one code in forty differs by one.

Tokens read after the prompt are not quantised; both references quantise them too, 128 at a time.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from kvbench.cache.kv_cache import KVCache, LayerCache, split_by_length, storage_bytes

Packing = Literal["int8", "int4", "int2", "kivi4", "kivi2"]
"""Quantised formats of a cache."""
PACKINGS: tuple[Packing, ...] = get_args(Packing)

Store = Literal["flat", "shared", "int8", "int4", "int2", "kivi4", "kivi2"]
"""How a cell holds its cache while it answers. `flat`: a copy of the KV pairs that the cell keeps. `shared`: one full
cache for all cells, and a mask of the kept KV pairs for each. The others: a quantised copy of the kept KV pairs."""

DenseHeads = Float[Tensor, "cache_heads tokens head_dim"]


@dataclass(frozen=True)
class Format:
    """bits: per number. group: numbers that share a scale. kivi: keys by channel, the newest `residual` plain."""

    bits: int
    group: int
    kivi: bool = False
    residual: int = 0


FORMATS: Mapping[Packing, Format] = {
    "int8": Format(8, 64),
    "int4": Format(4, 64),
    "int2": Format(2, 64),
    "kivi4": Format(4, 32, kivi=True, residual=128),
    "kivi2": Format(2, 32, kivi=True, residual=128),
}


@dataclass(frozen=True)
class Codes:
    """Quantised numbers in groups. The last number of an incomplete group is repeated to fill it."""

    bits: int
    packed: UInt8[Tensor, "groups bytes"]
    scale: Float[Tensor, "groups 1"]
    least: Float[Tensor, "groups 1"]

    def numbers(self) -> Float[Tensor, "groups members"]:
        """The dequantised numbers, in the dtype of the scale."""
        shifts = torch.arange(0, 8, self.bits, dtype=torch.uint8, device=self.packed.device)
        codes = (self.packed[..., None] >> shifts) & (2**self.bits - 1)
        return codes.flatten(1).to(self.scale.dtype) * self.scale + self.least


@dataclass(frozen=True)
class PackedHeads:
    """Keys, or values, of cache heads of one length: `codes` of all but the newest, `rest`, which are not quantised.

    shape: of the quantised part. axis: a group is one channel at consecutive tokens, a part of one token, or a run of
    numbers in memory order (`row`).
    """

    codes: Codes
    rest: Float[Tensor, "cache_heads rest head_dim"]
    shape: tuple[int, int, int]
    axis: Literal["channel", "token", "row"]

    def dense(self) -> DenseHeads:
        """The dequantised keys or values, as attention reads them."""
        heads, tokens, head_dim = self.shape
        if not tokens:
            return self.rest
        numbers = self.codes.numbers()
        if self.axis == "channel":
            read = numbers.view(heads, -1, head_dim, numbers.shape[1]).transpose(2, 3).reshape(self.shape)
        elif self.axis == "token":
            read = numbers.view(heads, tokens, -1)[..., :head_dim]
        else:
            read = numbers.flatten()[: heads * tokens * head_dim].view(self.shape)
        return torch.cat((read, self.rest), dim=1) if self.rest.shape[1] else read

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All that is held."""
        return self.codes.packed, self.codes.scale, self.codes.least, self.rest


@dataclass(frozen=True)
class PackedLayer:
    """One layer: its cache heads by length, with their packed keys and values."""

    index: int
    query_heads: int
    lengths: tuple[int, ...]
    runs: tuple[tuple[tuple[int, ...], PackedHeads, PackedHeads], ...]
    sliding_window: int | None

    @property
    def cache_heads(self) -> int:
        """Heads of the cache."""
        return len(self.lengths)

    @property
    def tensors(self) -> Iterator[Tensor]:
        """All that is held."""
        return (tensor for _, keys, values in self.runs for tensor in (*keys.tensors, *values.tensors))


@dataclass(frozen=True)
class PackedCache:
    """All layers of one sequence of `num_tokens` tokens. Local layers are packed too."""

    layers: tuple[PackedLayer, ...]
    num_tokens: int

    @property
    def evictable(self) -> tuple[PackedLayer, ...]:
        """The layers that eviction sees."""
        return tuple(layer for layer in self.layers if layer.sliding_window is None)

    @property
    def bytes_held(self) -> int:
        """Bytes of codes, scales, minima and the numbers that are not packed."""
        return storage_bytes(tensor for layer in self.layers for tensor in layer.tensors)

    @property
    def bytes_allocated(self) -> int:
        """The same: positions and state are not stored."""
        return self.bytes_held


def packing_of(store: Store) -> Packing | None:
    """The format of a quantised store; None for the others."""
    return next((packing for packing in PACKINGS if packing == store), None)


def pack_cache(cache: KVCache, packing: Packing) -> PackedCache:
    """A quantised copy of a cache; heads of different lengths are packed separately."""
    return PackedCache(tuple(_pack_layer(layer, FORMATS[packing]) for layer in cache.layers), cache.num_tokens)


def _pack_layer(layer: LayerCache, format: Format) -> PackedLayer:
    runs = tuple(
        (heads, pack_keys(part.dense[0], format), pack_values(part.dense[1], format))
        for heads, part in split_by_length(layer)
    )
    return PackedLayer(layer.index, layer.query_heads, layer.lengths, runs, layer.sliding_window)


def pack_keys(keys: DenseHeads, format: Format) -> PackedHeads:
    """Keys of heads of one length in a format."""
    if not format.kivi:
        return _in_a_row(keys, format)
    heads, tokens, head_dim = keys.shape
    packed = tokens - tokens % format.residual
    channels = keys[:, :packed].reshape(heads, packed // format.group, format.group, head_dim).transpose(2, 3)
    codes = encode(channels.reshape(-1, format.group), format.bits)
    return PackedHeads(codes, keys[:, packed:].clone(), (heads, packed, head_dim), "channel")


def pack_values(values: DenseHeads, format: Format) -> PackedHeads:
    """Values of heads of one length in a format."""
    if not format.kivi:
        return _in_a_row(values, format)
    heads, tokens, head_dim = values.shape
    packed = max(0, tokens - format.residual)
    codes = encode(_groups(values[:, :packed].reshape(-1, head_dim), format), format.bits)
    return PackedHeads(codes, values[:, packed:].clone(), (heads, packed, head_dim), "token")


def encode(groups: Float[Tensor, "groups members"], bits: int) -> Codes:
    """Codes of numbers, group by group, computed in float32 or wider; equal numbers have scale 0.

    The codes of a group must fill whole bytes.
    """
    wide = groups if groups.dtype.itemsize >= 4 else groups.float()
    least, most = wide.amin(dim=-1, keepdim=True), wide.amax(dim=-1, keepdim=True)
    scale = ((most - least) / (2**bits - 1)).to(groups.dtype)
    least = least.to(groups.dtype)
    codes = ((wide - least) / scale).nan_to_num(0.0).round().clamp(0, 2**bits - 1).to(torch.uint8)
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=codes.device)
    apart = codes.view(len(codes), codes.shape[1] // len(shifts), len(shifts))
    return Codes(bits, (apart << shifts).sum(dim=-1, dtype=torch.uint8), scale, least)


def _in_a_row(pairs: DenseHeads, format: Format) -> PackedHeads:
    heads, tokens, head_dim = pairs.shape
    codes = encode(_groups(pairs.reshape(1, -1), format), format.bits)
    return PackedHeads(codes, pairs[:, :0].clone(), (heads, tokens, head_dim), "row")


def _groups(rows: Float[Tensor, "rows numbers"], format: Format) -> Float[Tensor, "groups members"]:
    """Rows split into groups; an incomplete last group is filled with its last number."""
    per_byte, numbers = 8 // format.bits, rows.shape[1]
    group = min(format.group, -(-numbers // per_byte) * per_byte)
    filling = rows[:, -1:].expand(-1, -numbers % group)
    return torch.cat((rows, filling), dim=1).reshape(-1, group)
