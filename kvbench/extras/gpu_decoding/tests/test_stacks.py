"""Layers that lie in one array, and cells that are copied from there straight into their batch: the bits are those of
layers and caches of their own."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from kvbench.cache.kv_cache import CutCache, KVCache, LayerCache, compact
from kvbench.extras.gpu_decoding.flat_layer import FlatLayer
from kvbench.models.decode.batch import RaggedBatch
from kvbench.models.engine import Engine
from tests.batches import batch_by
from tests.models.families import PROMPT, engine_of

SIZES = {"llama": [3, 1], "gemma2": [2]}
"""Layers of each stack; those of gemma2 have a local one between them."""


def prefilled(monkeypatch: pytest.MonkeyPatch, family: str, sizes: Sequence[int]) -> KVCache:
    first = {sum(sizes[:place]): size for place, size in enumerate(sizes)}
    monkeypatch.setattr(Engine, "_layers_together", lambda self, before, numbers: first.get(before, 1))
    return engine_of(family).prefill(PROMPT, {8, 40}).cache


def parts(layer: LayerCache) -> list[torch.Tensor]:
    windows = [part for window in layer.windows for part in (window.queries, window.outputs, window.lse)]
    return [*layer.dense, *windows]


@pytest.mark.parametrize("family", SIZES)
def test_a_prompt_is_read_into_stacks(monkeypatch: pytest.MonkeyPatch, family: str) -> None:
    alone = prefilled(monkeypatch, family, [])
    cache = prefilled(monkeypatch, family, SIZES[family][: len(alone.evictable)])
    assert not alone.stacks and [stack.layers for stack in cache.stacks] == SIZES[family]
    assert cache.bytes_held == alone.bytes_held
    layers = iter(zip(cache.evictable, alone.evictable, strict=True))
    for stack in cache.stacks:
        own = [next(layers) for _ in range(stack.layers)]
        assert stack.index == own[0][0].index
        for place, part in enumerate(parts(stack)):
            for copies in zip(*own, strict=True):
                assert torch.equal(part, torch.cat([parts(layer)[place] for layer in copies]))


def test_a_stack_that_is_not_filled_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    alone, cache = (prefilled(monkeypatch, "llama", sizes) for sizes in ([], [9]))
    assert not cache.stacks and cache.bytes_held == alone.bytes_held


@pytest.mark.parametrize("family", SIZES)
@pytest.mark.parametrize("copies", [1, 3], ids=["kv_heads", "query_heads"])
@pytest.mark.parametrize("kernels", ["torch", "triton"])
def test_cells_are_copied_into_their_batch(
    monkeypatch: pytest.MonkeyPatch, family: str, copies: int, kernels: str
) -> None:
    cache = prefilled(monkeypatch, family, SIZES[family])
    generator, heads = torch.Generator().manual_seed(1), copies * cache.evictable[0].cache_heads
    cuts = []
    for share in (0.1, 0.6, 1.0):
        kept = tuple(torch.rand(heads, 61, generator=generator) < share for _ in cache.evictable)
        cuts.append(CutCache(cache, kept, torch.stack([mask.sum(dim=1) for mask in kept])))
    smaller = [compact(cache, cut.kept) for cut in cuts]
    for cut, own in zip(cuts, smaller, strict=True):
        assert (cut.bytes_held, cut.bytes_allocated) == (own.bytes_held, own.bytes_allocated)
        copied = cache.with_evictable([layer.copied for layer in cut.evictable])
        assert all(torch.equal(*pair) for pair in zip(_pairs(copied), _pairs(own), strict=True))
    expected = batch_by(kernels, smaller, 4, 5)
    repeated = replace(cuts[0], whole=cache.with_evictable(cache.evictable))
    for caches in (cuts, [repeated, *cuts[1:]], [*cuts[:1], smaller[1], *cuts[2:]], [smaller[0], *cuts[1:]]):
        assert_same_batch(batch_by(kernels, caches, 4, 5), expected)


def assert_same_batch(straight: RaggedBatch, expected: RaggedBatch) -> None:
    assert straight.peak_bytes == expected.peak_bytes and straight.bytes_read(1, 0, 4) == expected.bytes_read(1, 0, 4)
    assert list(straight._layers) == list(expected._layers)
    for layer, other in zip(straight._layers.values(), expected._layers.values(), strict=True):
        for run, its in zip(layer.runs, other.runs, strict=True):
            assert torch.equal(run.keys, its.keys) and torch.equal(run.values, its.values)
        if isinstance(layer, FlatLayer) and isinstance(other, FlatLayer):
            for name in ("keys", "values", "starts", "lengths", "tail_keys", "tail_values"):
                assert torch.equal(getattr(layer, name), getattr(other, name))
            assert layer.longest == other.longest
        assert type(layer) is type(other)


def _pairs(cache: KVCache) -> list[torch.Tensor]:
    return [part for layer in cache.layers for part in (layer.keys, layer.values, layer.positions)]
