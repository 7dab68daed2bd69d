"""Memory that reading and cutting take: nothing of tokens x tokens is made, and no second copy of a cache."""

from typing import Any

import pytest
import torch

from kvbench.cache.attention import explicit, fused
from kvbench.cache.kernels.choice import Kernels
from kvbench.cache.kv_cache import KVCache, compact, from_dense, storage_bytes
from kvbench.eviction.scores.attn import Attention
from kvbench.models import bridge
from kvbench.models.engine import Engine
from kvbench.models.prefill import Attend
from tests.allocations import allocated
from tests.arrays import random_layer
from tests.batches import batch_by
from tests.models.conftest import tiny_llama

LAYERS, KV_HEADS, TOKENS, HEAD_DIM = 6, 2, 2000, 32
LAYER = 2 * KV_HEADS * TOKENS * HEAD_DIM * 4


@pytest.mark.parametrize("attend", [fused, explicit], ids=["sdpa", "eager"])
def test_a_prompt_twice_as_long_needs_no_piece_four_times_as_large(attend: Attend) -> None:
    model = tiny_llama(max_position_embeddings=4096)
    bridge.attach(model)
    engine = Engine(model, prefill_chunk=128, attend=attend)
    short, long = (
        allocated(lambda n=n: engine.prefill(torch.arange(n) % 90, windows={16, n})).largest for n in (900, 1800)
    )
    assert long < 2.3 * short


@pytest.mark.parametrize("rows", [5, 900])
def test_observed_rows_are_held_once(rows: int) -> None:
    """Their queries, outputs and log-sum-exp: not twice while a cache is made, and no block that they are a part of."""
    model, ids = tiny_llama(num_hidden_layers=8, head_dim=64, max_position_embeddings=1024), torch.arange(900) % 90
    bridge.attach(model)
    engine, recorded = Engine(model, prefill_chunk=300), 8 * 6 * rows * (2 * 64 + 1) * 4
    without, block = allocated(lambda: engine.prefill(ids)).most, 6 * 300 * 64 * 4
    # Less than one block of queries besides; what either run holds only while it computes is not the same.
    assert allocated(lambda: engine.prefill(ids, {rows})).most < without + recorded + block
    windows = [window for layer in engine.prefill(ids, {rows}).cache.layers for window in layer.windows]
    assert storage_bytes(part for row in windows for part in (row.queries, row.outputs, row.lse)) == recorded


def test_votes_of_a_whole_prompt_make_no_matrix() -> None:
    def peak(tokens: int) -> int:
        layer = random_layer(tokens, window=tokens, heads=2, kv_heads=1, head_dim=8)
        return allocated(lambda: Attention()(layer, layer.observed(tokens), "sum")).most

    assert peak(3000) < 2.3 * peak(1500)


def cache() -> KVCache:
    generator = torch.Generator().manual_seed(0)
    layers = []
    for index in range(LAYERS):
        keys, values = torch.randn(2, KV_HEADS, TOKENS, HEAD_DIM, generator=generator)
        layers.append(from_dense(index, 2 * KV_HEADS, keys.clone(), values.clone()))
    return KVCache(tuple(layers), TOKENS)


def test_compaction_holds_what_it_keeps_and_little_more() -> None:
    full, kept = cache(), torch.zeros(KV_HEADS, TOKENS, dtype=torch.bool)
    kept[0, ::3], kept[1, ::7] = True, True
    cut = compact(full, (kept,) * LAYERS)
    most = allocated(lambda: compact(full, (kept,) * LAYERS)).most
    assert cut.bytes_allocated <= most < cut.bytes_allocated + LAYER / 4
    assert most < full.bytes_held / 2


def test_appending_copies_a_layer_at_a_time() -> None:
    layer = cache().layers[0]
    new = torch.zeros(KV_HEADS, 1, HEAD_DIM)
    assert allocated(lambda: layer.append(new, new, TOKENS)).most < 1.2 * LAYER


@pytest.mark.parametrize("kernels", ["torch", "triton"])
def test_a_tile_takes_caches_over_layer_by_layer(kernels: Kernels) -> None:
    if kernels == "triton":
        pytest.importorskip("triton", reason="no kernels without triton")

    def build() -> Any:
        given = [cache(), cache()]
        return batch_by(kernels, (given.pop() for _ in range(2)), 2, 1)

    caches = 2 * LAYERS * LAYER
    assert caches < allocated(build).most < caches + 3.5 * LAYER  # one layer of each of the two caches is there twice
