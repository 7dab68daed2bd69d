"""Quantised KV caches: instead of eviction or after it, so that methods can be compared at equal bytes.

The minimum of a group of numbers and the scale = (maximum - minimum) / (2^bits - 1) are stored in the model's dtype. A
number becomes the code round((x - minimum) / scale) of `bits` bits, packed into bytes; it dequantises to code * scale +
minimum.

    int8 int4 int2  as transformers' `QuantizedCache` with the backend quanto (`QuantoQuantizedLayer`: axis 0, groups of
                    64; 4 and 2 bits): keys and values in memory order, head by head, 64 numbers per group
    kivi4 kivi2     KIVI (Liu et al. 2024, https://arxiv.org/abs/2402.02750, algorithm 1): keys by channel, 32 tokens
                    per group; values by token, 32 channels per group; the newest tokens % 128 keys and the newest 128
                    values are not quantised
    fp8 nvfp4       floats of 8 and 4 bits, as servers hold them (`floats.py`)

Codes are computed in float32 or wider. In float32 they equal the codes of quanto 0.2.7 to the bit; in bfloat16, quanto
computes in bfloat16 and one code in forty differs by one.

Tokens read after the prompt are not quantised; both references quantise them too, 128 at a time.

Keys of which channels were removed (`policy.apply=think`) are held without them, quantised or not, and read as 0 there.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from kvbench.cache.kv_cache import DensePairs, KVCache, LayerCache, dense_parts, storage_bytes
from kvbench.cache.recurrent import RecurrentState
from kvbench.extras.stores import floats
from kvbench.extras.stores.floats import FloatCodes

Packing = Literal["int8", "int4", "int2", "kivi4", "kivi2", "fp8", "nvfp4"]
PACKINGS: tuple[Packing, ...] = get_args(Packing)

CHANNELS = "channels"
"""The channels of keys that are held, of each cache head: the name in `LayerCache.by_head`."""


@dataclass(frozen=True)
class Format:
    """bits: per number. group: numbers that share a scale; 1: none of its own. kivi: keys by channel, the newest
    `residual` plain. floats: codes are floats.
    """

    bits: int
    group: int
    kivi: bool = False
    residual: int = 0
    floats: bool = False

    def bytes_each(self, itemsize: int) -> float:
        """Return bytes of a number with its part of the scale, and minimum, of its group. itemsize: of the model's
        numbers.
        """
        if self.floats:
            return self.bits / 8 + (self.group > 1) / self.group
        return self.bits / 8 + 2 * itemsize / self.group


FORMATS: Mapping[Packing, Format] = {
    "int8": Format(8, 64),
    "int4": Format(4, 64),
    "int2": Format(2, 64),
    "kivi4": Format(4, 32, kivi=True, residual=128),
    "kivi2": Format(2, 32, kivi=True, residual=128),
    "fp8": Format(8, 1, floats=True),
    "nvfp4": Format(4, 16, floats=True),
}


@dataclass(frozen=True)
class Codes:
    """Quantised numbers in groups. The last number of an incomplete group is repeated to fill it."""

    bits: int
    packed: UInt8[Tensor, "groups bytes"]
    scale: Float[Tensor, "groups 1"]
    least: Float[Tensor, "groups 1"]

    def numbers(self) -> Float[Tensor, "groups members"]:
        """Return the dequantised numbers, in the dtype of the scale."""
        shifts = torch.arange(0, 8, self.bits, dtype=torch.uint8, device=self.packed.device)
        codes = (self.packed[..., None] >> shifts) & (2**self.bits - 1)
        return codes.flatten(1).to(self.scale.dtype) * self.scale + self.least

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors that are held."""
        return self.packed, self.scale, self.least


@dataclass(frozen=True)
class PackedHeads:
    """Keys, or values, of cache heads of one length: `codes` of shape `shape`, and the newest, `rest`, as they are.

    axis: a group is one channel at consecutive tokens, a part of one token, or a run in memory order (`row`).
    """

    codes: Codes | FloatCodes
    rest: Float[Tensor, "cache_heads rest head_dim"]
    shape: tuple[int, int, int]
    axis: Literal["channel", "token", "row"]

    def dense(self) -> DensePairs:
        """Return the dequantised keys or values, as attention reads them."""
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
        """Codes with their scales, and the numbers that are not packed."""
        return *self.codes.tensors, self.rest


@dataclass(frozen=True)
class PlainHeads:
    """Keys, or values, of cache heads of one length as they are."""

    rest: DensePairs

    def dense(self) -> DensePairs:
        """As attention reads them."""
        return self.rest

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors that are held."""
        return (self.rest,)


@dataclass(frozen=True)
class PrunedHeads:
    """Keys of cache heads of one length without the channels that were removed: `stored` has those in `channels`, in
    this order; the newest, `rest`, have all.
    """

    stored: PackedHeads | PlainHeads
    channels: Int[Tensor, "cache_heads stored"]
    rest: Float[Tensor, "cache_heads rest head_dim"]

    def dense(self) -> DensePairs:
        """Return the keys with zeros in the channels that were removed, as attention reads them."""
        stored = self.stored.dense()
        heads, tokens, _ = stored.shape
        places = self.channels.long()[:, None].expand_as(stored)
        keys = stored.new_zeros(heads, tokens, self.rest.shape[2]).scatter_(2, places, stored)
        return torch.cat((keys, self.rest), dim=1)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors that are held, the numbers of the channels included."""
        return *self.stored.tensors, self.channels, self.rest


Packed = PackedHeads | PlainHeads | PrunedHeads


@dataclass(frozen=True)
class PackedLayer:
    """One layer: `runs` of cache heads of one length, with their packed keys and values."""

    index: int
    lengths: tuple[int, ...]
    runs: tuple[tuple[tuple[int, ...], Packed, Packed], ...]
    sliding_window: int | None

    @property
    def cache_heads(self) -> int:
        return len(self.lengths)


@dataclass(frozen=True)
class PackedCache:
    """All layers of one sequence of `num_tokens` tokens. Local layers are packed too."""

    layers: tuple[PackedLayer, ...]
    num_tokens: int
    recurrent: RecurrentState | None = None

    @property
    def evictable(self) -> tuple[PackedLayer, ...]:
        """The layers that eviction sees."""
        return tuple(layer for layer in self.layers if layer.sliding_window is None)

    @property
    def bytes_held(self) -> int:
        """Bytes of all that is stored; neither positions nor state are."""
        runs = (run for layer in self.layers for run in layer.runs)
        return storage_bytes(tensor for _, keys, values in runs for tensor in (*keys.tensors, *values.tensors))

    bytes_allocated = bytes_held


def pack_cache(cache: KVCache, packing: Packing | None, whole_keys: int = 0) -> PackedCache:
    """Return a copy of a cache that is quantised, unless `packing` is None, and without the channels that were removed
    from all but the newest `whole_keys` keys.

    Heads of different lengths are packed separately.
    """
    format, layers = None if packing is None else FORMATS[packing], []
    for layer in cache.layers:
        tops = _tops(layer, format)
        runs = tuple((heads, *_packed(part, format, whole_keys, tops)) for heads, part in dense_parts(layer))
        layers.append(PackedLayer(layer.index, layer.lengths, runs, layer.sliding_window))
    return PackedCache(tuple(layers), cache.num_tokens, cache.recurrent)


Tops = Mapping[Literal["keys", "values"], Float[Tensor, ""]]


def _tops(layer: LayerCache, format: Format | None) -> Tops:
    """Return the scales of all keys and of all values of a layer, if the format has any: its heads share them."""
    if format is None or not format.floats:
        return {}
    return {"keys": floats.top(layer.keys, format.bits), "values": floats.top(layer.values, format.bits)}


def _packed(layer: LayerCache, format: Format | None, whole_keys: int, tops: Tops) -> tuple[Packed, Packed]:
    """Keys and values of a layer whose heads have one length."""
    keys, values = layer.dense

    def stored(pairs: DensePairs, kind: Literal["keys", "values"]) -> PackedHeads | PlainHeads:
        return PlainHeads(pairs) if format is None else pack(pairs, format, kind, tops.get(kind))

    if CHANNELS not in layer.by_head:
        return stored(keys, "keys"), stored(values, "values")
    channels, stop = layer.by_head[CHANNELS], max(0, keys.shape[1] - whole_keys)
    remaining = keys[:, :stop].gather(2, channels[:, None].expand(-1, stop, -1))
    pruned = PrunedHeads(stored(remaining, "keys"), channels.to(torch.int16), keys[:, stop:].clone())
    return pruned, stored(values, "values")


def pack(
    pairs: DensePairs, format: Format, kind: Literal["keys", "values"], top: Float[Tensor, ""] | None = None
) -> PackedHeads:
    """Keys or values of heads of one length in a format. top: the scale of all numbers, for floats; None: of these."""
    heads, tokens, head_dim = pairs.shape
    if not format.kivi:
        rows, packed, axis = pairs.reshape(1, -1), tokens, "row"
    elif kind == "keys":
        packed, axis = tokens - tokens % format.residual, "channel"
        rows = pairs[:, :packed].reshape(heads, packed // format.group, format.group, head_dim).transpose(2, 3)
        rows = rows.reshape(-1, format.group)
    else:
        packed, axis = max(0, tokens - format.residual), "token"
        rows = pairs[:, :packed].reshape(-1, head_dim)
    per_byte, numbers = 8 // format.bits, rows.shape[1]
    group = min(format.group, max(1, -(-numbers // per_byte)) * per_byte)  # a head may keep nothing
    filling = rows[:, -1:].expand(-1, -numbers % group)
    groups = torch.cat((rows, filling), dim=1).reshape(-1, group)
    if format.floats:
        codes = floats.encode(groups, format.bits, floats.top(pairs, format.bits) if top is None else top)
    else:
        codes = encode(groups, format.bits)
    return PackedHeads(codes, pairs[:, packed:].clone(), (heads, packed, head_dim), axis)


def encode(groups: Float[Tensor, "groups members"], bits: int) -> Codes:
    """Codes of numbers, group by group; the codes of a group fill whole bytes. Equal numbers have scale 0."""
    wide = groups if groups.dtype.itemsize >= 4 else groups.float()
    least, most = wide.amin(dim=-1, keepdim=True), wide.amax(dim=-1, keepdim=True)
    scale = ((most - least) / (2**bits - 1)).to(groups.dtype)
    least = least.to(groups.dtype)
    codes = ((wide - least) / scale).nan_to_num(0.0).round().clamp(0, 2**bits - 1).to(torch.uint8)
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=codes.device)
    apart = codes.view(len(codes), codes.shape[1] // len(shifts), len(shifts))
    return Codes(bits, (apart << shifts).sum(dim=-1, dtype=torch.uint8), scale, least)
