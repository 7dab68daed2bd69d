"""A flat batch, whose prefixes a kernel attends to, against runs in plain PyTorch."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from kvbench.cache.attention import AttentionParams
from kvbench.cache.kv_cache import KVCache
from tests.allocations import stored_bytes
from tests.arrays import random_layer
from tests.batches import batch_by

pytest.importorskip("triton", reason="no kernels without triton: pip install 'kvbench[kernels]'")

HEADS, KV_HEADS, HEAD_DIM = 6, 2, 24


def caches(local: bool = False, dtype: torch.dtype = torch.float32) -> list[KVCache]:
    """Two cells of one prompt with ragged heads, one of them empty."""
    layer, cut = random_layer(61, heads=HEADS, kv_heads=KV_HEADS, head_dim=HEAD_DIM), []
    layer = replace(layer, keys=layer.keys.to(dtype), values=layer.values.to(dtype))
    if local:
        return [KVCache((replace(layer, sliding_window=70),), 61)] * 2
    for counts in ((13, 40), (0, 29)):
        kept = torch.zeros(KV_HEADS, 61, dtype=torch.bool)
        for head, count in enumerate(counts):
            kept[head, torch.randperm(61, generator=torch.Generator().manual_seed(count))[:count]] = True
        cut.append(KVCache((layer.select(kept),), 61))
    return cut


def outputs(
    kernels: Any, rule: AttentionParams, dtype: torch.dtype = torch.float32, local: bool = False
) -> list[torch.Tensor]:
    tile = batch_by(kernels, caches(local, dtype), 3, 8)
    generator, attended = torch.Generator().manual_seed(4), []
    for new in (5, 1):
        queries = torch.randn(3, HEADS, new, HEAD_DIM, generator=generator).to(dtype)
        keys, values = torch.randn(2, 3, KV_HEADS, new, HEAD_DIM, generator=generator).to(dtype)
        attended.append(tile.attend(0, queries, keys, values, rule))
        tile.finish(new)
    return attended


RULES = {
    "plain": AttentionParams(0.3),
    "soft cap": AttentionParams(0.3, softcap=2.0),
    "sinks": AttentionParams(0.3, sinks=torch.linspace(-1, 2, HEADS)),
}


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_a_question_and_a_token_are_read_the_same(rule: AttentionParams) -> None:
    for output, expected in zip(outputs("triton", rule), outputs("torch", rule), strict=True):
        assert output.shape == expected.shape and (output - expected).abs().max() < 5e-6
        assert (output[2] == 0).all() and (output[:2] != 0).any()


def test_half_precision_stays_what_it_was() -> None:
    both = (outputs(kernels, RULES["plain"], torch.bfloat16) for kernels in ("triton", "torch"))
    for output, expected in zip(*both, strict=True):
        assert output.dtype == torch.bfloat16 and (output - expected).abs().max() < 0.06


def test_local_layers_are_left_to_plain_pytorch() -> None:
    rule = AttentionParams(0.3, sliding_window=70)
    both = (outputs(kernels, rule, local=True) for kernels in ("triton", "torch"))
    assert all(torch.equal(output, expected) for output, expected in zip(*both, strict=True))


def test_bytes_are_those_of_the_pairs() -> None:
    flat, runs = (batch_by(kernels, caches(), 2, 8) for kernels in ("triton", "torch"))
    assert stored_bytes(flat) == stored_bytes(runs) and flat.peak_bytes == runs.peak_bytes
