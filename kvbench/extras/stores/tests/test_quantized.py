"""Pairs in few bits: the formulas number by number, what is held, and cells that answer from it."""

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoTokenizer

from kvbench.cache.kv_cache import KVCache, from_dense
from kvbench.eviction.allocation.allocation import Heads, UniformHeads
from kvbench.eviction.allocation.heads import FlatHeads
from kvbench.eviction.budget import TokenBudget
from kvbench.eviction.evict import Eviction
from kvbench.eviction.policy import Policy
from kvbench.eviction.scores.attn import Attention
from kvbench.extras.stores import floats
from kvbench.extras.stores.channels import ThinK
from kvbench.extras.stores.packed import Packed
from kvbench.extras.stores.quantized import FORMATS, PACKINGS, PackedCache, Packing, encode, pack, pack_cache
from kvbench.extras.stores.quantized_batch import QuantizedBatch
from kvbench.models import bridge
from kvbench.models.decode.batch import RaggedBatch
from kvbench.models.engine import Engine
from kvbench.models.loading.load import LoadedModel
from kvbench.run.plan import PrefillJob
from kvbench.run.prefill_job import run_prefill_job
from scripts.golden_stores import drawn as drawn_numbers
from tests import repository
from tests.arrays import random_cache
from tests.models.conftest import tiny_llama
from tests.run.test_prefill_job import SNAPKV, cells, samples_of

GOLDEN = json.loads((repository.GOLDEN / "stores.json").read_text("utf-8"))
E4M3 = [(m / 8 + bool(e)) * 2.0 ** (max(e, 1) - 7) for e in range(16) for m in range(8)][:-1]
E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6]


def naive(numbers: list[float], bits: int) -> list[float]:
    """A group as it is read back, one number after the other."""
    least, most = min(numbers), max(numbers)
    scale = (most - least) / (2**bits - 1)
    return [round((number - least) / scale) * scale + least if scale else least for number in numbers]


def in_a_row(pairs: Tensor, bits: int) -> Tensor:
    """Groups of 64 as the numbers lie."""
    flat = pairs.flatten().tolist()
    read = [number for start in range(0, len(flat), 64) for number in naive(flat[start : start + 64], bits)]
    return torch.tensor(read, dtype=pairs.dtype).view(pairs.shape)


def kivi(pairs: Tensor, bits: int, by_channel: bool) -> Tensor:
    """Groups of 32 tokens of a channel, or of 32 channels of a token."""
    read, (heads, tokens, head_dim) = pairs.clone(), pairs.shape
    packed = tokens - tokens % 128 if by_channel else max(0, tokens - 128)
    for head in range(heads):
        for outer in range(head_dim if by_channel else packed):
            line = read[head, :packed, outer] if by_channel else read[head, outer]
            for start in range(0, len(line), 32):
                line[start : start + 32] = torch.tensor(
                    naive(line[start : start + 32].tolist(), bits), dtype=pairs.dtype
                )
    return read


def nearest(numbers: np.ndarray, magnitudes: Sequence[float]) -> np.ndarray:
    """The nearest magnitudes with the signs of numbers; of two that are as near, that of the even code."""
    even_first = np.array([*magnitudes[::2], *magnitudes[1::2]])
    places = np.abs(np.abs(numbers)[..., None].astype(float) - even_first).argmin(axis=-1)
    return np.copysign(even_first[places], numbers).astype(np.float32)


def rounded(pairs: Tensor, bits: int) -> Tensor:
    """Floats as they lie, in float32: scaled together, those of 4 bits also 16 by 16."""
    read = pairs.float().flatten().numpy()
    top = np.abs(read).max(initial=0) / np.float32(448 if bits == 8 else 448 * 6)
    if bits == 8:
        read = nearest(read / top, E4M3) * top
    else:
        for start in range(0, len(read), 16):
            block = read[start : start + 16]
            scale = top * np.maximum(nearest(np.abs(block).max() / (6 * top), E4M3), np.float32(2**-9))
            read[start : start + 16] = nearest(block / scale, E2M1) * scale
    return torch.tensor(read, dtype=pairs.dtype).view(pairs.shape)


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("tokens", [0, 5, 128, 301])
def test_what_is_read_back_is_what_the_formula_says(packing: Packing, tokens: int) -> None:
    drawn, format = torch.Generator().manual_seed(tokens), FORMATS[packing]
    pairs = torch.randn(3, tokens, 36, generator=drawn, dtype=torch.float64)
    expected = (kivi(pairs, format.bits, True), kivi(pairs, format.bits, False)) if format.kivi else ()
    expected = expected or ((rounded if format.floats else in_a_row)(pairs, format.bits),) * 2
    for read, wanted in zip(
        (pack(pairs, format, "keys").dense(), pack(pairs, format, "values").dense()), expected, strict=True
    ):
        assert read.shape == pairs.shape and torch.allclose(read, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: str(case["seed"]))
def test_floats_are_those_of_model_optimizer(case: dict[str, Any]) -> None:
    """Codes, scales and what is read back, to the bit; ties of both formats are to even."""
    pairs = torch.from_numpy(drawn_numbers(case["seed"]))[None]
    for name in ("fp8", "nvfp4"):
        packed, expected = pack(pairs, FORMATS[name], "keys"), case[name]
        codes, scale, *blocks = packed.codes.tensors
        assert float(scale) == expected["scale"]
        written = [each.view(torch.uint8).numpy().tobytes().hex() for each in (codes, *blocks)]
        assert written == [expected[part] for part in ("codes", "blocks") if part in expected]
        assert float(packed.dense().double().sum()) == pytest.approx(expected["read"], rel=1e-12)
    ties = np.array([(low + high) / 2 for low, high in pairwise(E2M1)] + [5.1, 99.0])
    codes = floats.e2m1(torch.from_numpy(np.concatenate((ties, -ties)))).numpy()
    assert [[0.0, *E2M1[1:], *(-each for each in E2M1)][code] for code in codes] == list(
        nearest(np.concatenate((ties, -ties)).clip(-6, 6), E2M1)
    )


@pytest.mark.parametrize("packing", ["fp8", "nvfp4"])
def test_heads_of_several_lengths_share_the_scale_of_their_layer(packing: Packing) -> None:
    """A pair reads as it did before others were evicted, if the largest stayed; both scales are held once."""
    full, drawn = full_cache(tokens=40, head_dim=32), torch.Generator().manual_seed(2)
    masks = [torch.rand(2, 40, generator=drawn) < torch.tensor([[0.3], [0.8]]) for _ in full.layers]
    for layer, mask in zip(full.layers, masks, strict=True):
        for pairs in layer.dense:
            mask[:, pairs.abs().amax(dim=(0, 2)).argmax()] = True
    cut = full.with_evictable([layer.select(mask) for layer, mask in zip(full.layers, masks, strict=True)])
    assert all(len(set(layer.lengths)) == 2 for layer in cut.layers)
    whole = read_back(pack_cache(full, packing), full)
    expected = whole.with_evictable([layer.select(mask) for layer, mask in zip(whole.layers, masks, strict=True)])
    packed = pack_cache(cut, packing)
    for read, wanted in zip(read_back(packed, cut).layers, expected.layers, strict=True):
        assert torch.equal(read.keys, wanted.keys) and torch.equal(read.values, wanted.values)
    each = FORMATS[packing].bytes_each(4)
    assert packed.bytes_held == cut.bytes_held / 4 * each + 4 * 2 * len(cut.layers)


def test_equal_numbers_are_read_back_as_they_are() -> None:
    assert torch.equal(encode(torch.full((2, 8), 0.3), 2).numbers(), torch.full((2, 8), 0.3))
    for pairs in (torch.zeros(2, 3, 32), torch.full((2, 3, 32), 0.3)):
        for name in ("fp8", "nvfp4"):
            assert torch.allclose(pack(pairs, FORMATS[name], "keys").dense(), pairs, rtol=2e-7)


@pytest.mark.parametrize(
    ("packing", "share"),
    [
        *(("int8", 0.28125), ("int4", 0.15625), ("int2", 0.09375), ("kivi4", None), ("kivi2", None)),
        *(("fp8", 0.25), ("nvfp4", 0.140625)),
    ],
)
def test_bytes_held_are_those_of_codes_and_scales(packing: Packing, share: float | None) -> None:
    cache = full_cache(tokens=320, head_dim=64)
    held, bits = pack_cache(cache, packing).bytes_held, FORMATS[packing].bits
    held -= 4 * 2 * len(cache.layers) if FORMATS[packing].floats else 0  # the scales of all keys and of all values
    held /= cache.bytes_held
    if share is None:  # of 320 tokens 64 keys and 128 values are no part of a group
        packed = (bits / 8 + 2 * 4 / 32) / 4
        share = ((256 + 192) * packed + 64 + 128) / 640
    assert held == pytest.approx(share, rel=1e-12)


def full_cache(tokens: int, head_dim: int) -> KVCache:
    drawn = torch.Generator().manual_seed(1)
    layers = (from_dense(i, 4, *torch.randn(2, 2, tokens, head_dim, generator=drawn)) for i in range(2))
    return KVCache(tuple(layers), tokens)


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    tokenizer = AutoTokenizer.from_pretrained(repository.GOLDEN / "ruler" / "tokenizer")
    llama = tiny_llama(vocab_size=len(tokenizer))
    bridge.attach(llama)
    return LoadedModel(Engine(llama, max_batch=4), tokenizer, frozenset(), 512, {"name": "cpu"})


def read_back(cache: PackedCache, like: KVCache) -> KVCache:
    """A flat cache with the numbers of a packed one."""
    layers = []
    for packed, layer in zip(cache.layers, like.layers, strict=True):
        keys, values = layer.keys.clone(), layer.values.clone()
        for heads, *parts in packed.runs:
            for target, part in zip((keys, values), parts, strict=True):
                for head, pairs in zip(heads, part.dense(), strict=True):
                    target[layer.offsets[head] : layer.offsets[head + 1]] = pairs
        layers.append(replace(layer, keys=keys, values=values))
    return replace(like, layers=tuple(layers))


@pytest.mark.parametrize("packing", ["int4", "kivi2"])
def test_a_tile_attends_to_what_is_read_back(model: LoadedModel, packing: Packing) -> None:
    """Ragged and dense, questions of several tokens: as a tile of flat caches that hold the same numbers."""
    drawn = torch.Generator().manual_seed(3)
    full = model.engine.prefill(torch.randint(5, 90, (150,), generator=drawn)).cache
    masks = [torch.rand(2, 150, generator=drawn) < 0.7 for _ in full.evictable]
    cut = full.with_evictable([layer.select(mask) for layer, mask in zip(full.evictable, masks, strict=True)])
    packed = [pack_cache(cache, packing) for cache in (full, cut)]
    flat = [read_back(cache, like) for cache, like in zip(packed, (full, cut), strict=True)]
    tiles = QuantizedBatch(packed, 4, 9), RaggedBatch(flat, 4, 9)
    for new in (5, 1, 1):
        ids = torch.randint(5, 90, (1, new), generator=drawn).expand(4, -1)
        ours, theirs = (model.engine.read(tile, ids)[:2] for tile in tiles)
        assert (ours - theirs).abs().max() < 1e-4 and ours.isfinite().all()
    assert [peak > held.bytes_held for peak, held in zip(tiles[0].peak_bytes, packed, strict=True)] == [True, True]


def test_cells_answer_from_few_bits(model: LoadedModel) -> None:
    """Everything kept, cut evenly and raggedly, in every format: bytes of a row are those of its store."""
    full, uniform = cells("0.5")
    ragged = uniform.with_method(policy=replace(SNAPKV, heads=FlatHeads()))
    job_cells = tuple(
        cell.with_method(holder=holder) for cell in (full, uniform, ragged) for holder in (None, *map(Packed, PACKINGS))
    )
    rows = run_prefill_job(model, PrefillJob({0: job_cells}), samples_of(0), "here").rows
    assert all(row.error is None for row in rows) and model.engine.counters.prefills
    for start in range(0, len(rows), len(PACKINGS) + 1):
        flat, *packed = rows[start : start + len(PACKINGS) + 1]
        assert [row.store for row in packed] == list(PACKINGS)
        assert {row.kept_sha256 for row in packed} == {flat.kept_sha256}
        held = [row.cache_bytes for row in (flat, *packed[:3])]
        assert held == sorted(held, reverse=True) and len(set(held)) == 4
        assert all(row.peak_bytes > row.cache_bytes for row in packed)
        assert packed[0].top2_margin == pytest.approx(flat.top2_margin, abs=0.05)


@pytest.mark.parametrize("heads", [UniformHeads(), FlatHeads()], ids=lambda heads: heads.kind)
def test_keys_are_held_without_the_channels_that_were_removed(heads: Heads) -> None:
    """Read back to the bit, in so many bytes; quantised, the channels that are left are."""
    policy = Policy("p", window=8, heads=heads, steps=(ThinK(ratio=0.5, window=8, recent=4),))
    cache = Eviction(policy, Attention(), TokenBudget(20))(random_cache(60))
    packed = pack_cache(cache, None, 4)
    for layer, expected in zip(read_back(packed, cache).layers, cache.layers, strict=True):
        assert torch.equal(layer.keys, expected.keys) and torch.equal(layer.values, expected.values)
    pairs, whole = cache.pairs, sum(min(4, length) for layer in cache.layers for length in layer.lengths)
    channels = 5 * 2 * sum(layer.cache_heads for layer in cache.layers)
    assert packed.bytes_held == 4 * (10 * pairs + 5 * (pairs - whole) + 10 * whole) + channels
    for layer, expected in zip(read_back(pack_cache(cache, "int8", 4), cache).layers, cache.layers, strict=True):
        assert torch.equal(layer.keys == 0, expected.keys == 0)
        assert torch.allclose(layer.keys, expected.keys, atol=0.05)


def test_a_cell_with_removed_channels_answers_from_the_store_that_its_row_counts(model: LoadedModel) -> None:
    """Flat, quantised, and with nothing evicted; cells that hold their keys whole are decoded beside them."""
    full, uniform = cells("0.5")
    apply = ThinK(ratio=0.5, window=8, recent=0)
    thin = uniform.with_method(policy=replace(SNAPKV, steps=(apply,)))
    few_bits = thin.with_method(holder=Packed("int4"))
    everything = thin.with_method(budget=full.budget)
    rows = run_prefill_job(
        model, PrefillJob({0: (full, uniform, thin, few_bits, everything)}), samples_of(0), "here"
    ).rows
    assert all(row.error is None for row in rows)
    by_cell, held = {row.cell: row for row in rows}, {row.cell: row.cache_bytes or 0 for row in rows}
    layers = len(model.engine.model.model.layers)
    places = 2 * 2 * layers * (model.engine.model.config.head_dim // 2)
    assert held[thin.id] - places == 0.75 * held[uniform.id]
    assert held[everything.id] - places == 0.75 * held[full.id]
    assert held[few_bits.id] < 0.3 * held[uniform.id]
    assert len({by_cell[cell.id].kept_sha256 for cell in (uniform, thin, few_bits)}) == 1
    assert (by_cell[thin.id].peak_bytes or 0) > held[thin.id]
