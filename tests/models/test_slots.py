"""Cells that evict together after every token equal caches that are evicted from one by one, whatever the company."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from kvbench.cache.kv_cache import KVCache
from kvbench.eviction.allocation.heads import MixHeads
from kvbench.eviction.budget import Tokens
from kvbench.eviction.evict import Eviction
from kvbench.eviction.incremental import IncrementalEviction, capacity_after
from kvbench.eviction.policy import Policy
from kvbench.eviction.pooling import Pool
from kvbench.eviction.scores.attn import Attention, AttentionMax
from kvbench.eviction.scores.cake import Cake
from kvbench.eviction.scores.caote import Caote
from kvbench.eviction.scores.exact import ExactRemoval, ExactZeroed
from kvbench.eviction.scores.keys import KeyNorm
from kvbench.eviction.scores.obcache import OBCacheJoint, OBCacheKey, OBCacheValue
from kvbench.eviction.scores.recency import Recency
from kvbench.models import bridge
from kvbench.models.decode.evicting_batch import EvictingBatch, EvictingCache
from kvbench.models.engine import Engine
from tests.models.families import tiny

H2O = Policy("h2o", window=8, recent=6, state="accumulate")
TOVA = Policy("tova", window=1)
POOLED = Policy("pooled", window=8, recent=4, sink=2, pool=Pool("max", 5))
AVERAGED = Policy("averaged", window=8, recent=3, pool=Pool("avg", 3), state="accumulate")
RAGGED = replace(POOLED, name="ragged", heads=MixHeads(alpha=0.2))
STREAMING = Policy("streaming_llm", sink=2, recent=3, state="none")
MIXED = [
    Eviction(policy, score, Tokens(budget))
    for policy, score, budget in (
        (H2O, Attention(), 18),
        (RAGGED, OBCacheJoint(), 20),
        (RAGGED, Attention(diagonal=False), 13),
        (POOLED, OBCacheKey(), 25),
        (H2O, OBCacheValue(), 11),
        (TOVA, ExactRemoval(), 18),
        (TOVA, ExactZeroed(), 9),
        (STREAMING, Recency(), 14),
        (replace(RAGGED, state="accumulate"), AttentionMax(), 16),
        (AVERAGED, Cake(), 17),
        (replace(STREAMING, recent=5), KeyNorm(), 12),
        (replace(RAGGED, layout="query_heads"), Attention(power=2), 15),
        (replace(RAGGED, recent=7, reduce="max"), Attention(power=2), 15),
        (POOLED, Caote(), 19),
        (POOLED, Attention(), 1000),
    )
]


def grown(
    engine: Engine, prompt: torch.Tensor, tokens: torch.Tensor, evictions: Sequence[Eviction]
) -> tuple[torch.Tensor, list[KVCache], list[int]]:
    """Logits of all tokens [cells, tokens, vocabulary], the caches afterwards, and the most bytes of each."""
    caches = []
    full = engine.prefill(prompt, {8, 1}).cache
    for eviction in evictions:
        decision = eviction.decide(full)
        stepping = IncrementalEviction(eviction, capacity_after(eviction, full, decision), decoding=True)
        caches.append(
            engine.evicting_cache(stepping, 1, stepping.remember(full, decision, eviction.evict(full, decision)))
        )
    batch = EvictingBatch(caches, engine.tile, len(tokens))
    logits = [engine.read(batch, token.expand(engine.tile, 1))[: len(caches)] for token in tokens]
    batch.check()
    batch.settle()
    return torch.stack(logits, dim=1), [cache.freeze() for cache in caches], batch.peak_bytes


def check_equal(left: Sequence[KVCache], right: Sequence[KVCache], near: float = 1e-9) -> None:
    for one, other in zip(left, right, strict=True):
        for layer, alone in zip(one.layers, other.layers, strict=True):
            assert layer.offsets == alone.offsets and layer.query_heads == alone.query_heads
            assert torch.equal(layer.positions, alone.positions)
            assert (layer.keys - alone.keys).abs().max() < near and (layer.values - alone.values).abs().max() < near
            for name, numbers in alone.state.items():
                assert torch.allclose(layer.state[name], numbers, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_oss"])
def test_cells_that_evict_together_are_those_that_evict_alone(
    family: str, prompt: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Soft caps, sinks and local layers too."""
    model = tiny(family)
    if family != "gpt_oss":  # experts multiply in float32
        model = model.double()
    bridge.attach(model)
    engine = Engine(model, tile=len(MIXED))
    tokens = torch.randint(0, 97, (8,), generator=torch.Generator().manual_seed(2))
    near = 1e-9 if family != "gpt_oss" else 1e-3
    logits, caches, peaks = grown(engine, prompt, tokens, MIXED)
    monkeypatch.setattr(EvictingCache, "slots_key", None)
    expected, alone, expected_peaks = grown(engine, prompt, tokens, MIXED)
    assert (logits - expected).abs().max() < near
    check_equal(caches, alone, near)
    assert peaks == expected_peaks


def test_kernels_evict_the_same_pairs(prompt: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads of different lengths, with and without a pool, running scores and protected tokens."""
    pytest.importorskip("triton")
    model = tiny("llama")
    bridge.attach(model)
    evictions = [MIXED[place] for place in (0, 1, 4, 8)]
    tokens = torch.randint(0, 97, (3,), generator=torch.Generator().manual_seed(2))
    logits, caches, _ = grown(Engine(model, tile=4, kernels="triton"), prompt, tokens, evictions)
    monkeypatch.setattr(EvictingCache, "slots_key", None)
    expected, alone, _ = grown(Engine(model, tile=4), prompt, tokens, evictions)
    assert (logits - expected).abs().max() < 1e-3
    check_equal(caches, alone, 1e-3)


def test_a_text_read_from_its_first_token(prompt: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells fill up at different times, and go on after a pause."""
    model = tiny("llama").double()
    bridge.attach(model)
    engine = Engine(model, tile=6)

    def read() -> tuple[torch.Tensor, list[KVCache], list[int]]:
        caches = [
            engine.evicting_cache(IncrementalEviction(Eviction(policy, score, Tokens(most)), most), 1)
            for policy, score, most in (
                (H2O, Attention(), 18),
                (H2O, OBCacheKey(), 9),
                (POOLED, Attention(), 12),
                (POOLED, OBCacheValue(), 30),
                (TOVA, Attention(), 500),
            )
        ]
        first, second = (engine.nll(part, caches) for part in (prompt[:33], prompt[32:]))
        return torch.cat((first, second), dim=1), [cache.freeze() for cache in caches], [c.read_bytes for c in caches]

    losses, caches, read_bytes = read()
    monkeypatch.setattr(EvictingCache, "slots_key", None)
    expected, alone, expected_bytes = read()
    assert (losses - expected).abs().max() < 1e-9
    check_equal(caches, alone)
    assert read_bytes == expected_bytes


def test_a_cell_has_the_same_bits_in_any_company(prompt: torch.Tensor) -> None:
    model = tiny("llama")
    bridge.attach(model)
    engine = Engine(model, tile=len(MIXED))
    tokens = torch.randint(0, 97, (6,), generator=torch.Generator().manual_seed(2))
    together, caches, _ = grown(engine, prompt, tokens, MIXED)
    for cell in (1, 2, 11):
        alone, (cache,), _ = grown(engine, prompt, tokens, [MIXED[cell]])
        assert torch.equal(alone[0], together[cell])
        assert all(torch.equal(a.keys, b.keys) for a, b in zip(cache.layers, caches[cell].layers, strict=True))
