"""Models that mix global and local layers: global ones are evicted, local ones hold their own window alone."""

from dataclasses import replace

import pytest
import torch

from kvbench.cache.attention import AttentionParams, explicit
from kvbench.cache.kv_cache import from_dense
from kvbench.eviction.budget import FractionBudget, TokenBudget, parse_budget
from kvbench.eviction.evict import Eviction
from kvbench.eviction.policy import Policy
from kvbench.eviction.scores.attn import Attention
from kvbench.models.decode.local_layer import LocalLayer
from tests.models.families import PROMPT, engine_of

SNAPKV = Policy("snapkv", window=8, recent=8)


@pytest.mark.parametrize("block", [1, 13, 61])
def test_a_local_layer_holds_what_later_tokens_can_see(block: int) -> None:
    """With a window of 19 the next token sees 18 of those before it; the rest is really freed."""
    cache = engine_of("gemma2", block=block).prefill(PROMPT, {8}).cache
    assert [layer.evictable for layer in cache.layers] == [False, True, False, True]
    for layer in cache.layers:
        held = 61 if layer.evictable else 18
        assert layer.lengths == (held, held)
        assert layer.positions.tolist() == [*range(61 - held, 61)] * 2
        assert layer.keys.untyped_storage().nbytes() == 2 * held * 10 * 4
        assert len(layer.windows) == layer.evictable
    assert cache.local_layers == 2 and cache.pairs == 2 * 2 * 61
    assert cache.bytes_held == 2 * (2 * 2 * 61 + 2 * 2 * 18) * 10 * 4


def test_local_layers_of_cells_hold_what_later_tokens_can_see() -> None:
    """With a window of 7 three new tokens leave the newest six of each cell."""
    generator, rule = torch.Generator().manual_seed(2), AttentionParams(0.3, sliding_window=7)
    keys, values = torch.randn(2, 2, 2, 23, 10, generator=generator).unbind()
    queries = torch.randn(2, 4, 3, 10, generator=generator)
    layers = [from_dense(5, 4, *(part[cell][:, 14:20] for part in (keys, values))) for cell in range(2)]
    local = LocalLayer([replace(layer, sliding_window=7) for layer in layers], 20)
    outputs = local.attend(queries, keys[..., 20:, :], values[..., 20:, :], rule)
    for cell in range(2):
        torch.testing.assert_close(outputs[cell], explicit(queries[cell], keys[cell], values[cell], rule))
        held = local.layer_of(cell)
        assert held.lengths == (6, 6) and held.positions.tolist() == [*range(17, 23)] * 2
        assert torch.equal(held.dense[0], keys[cell][:, 17:]) and torch.equal(held.dense[1], values[cell][:, 17:])
    assert local.bytes_held == [2 * 6 * (2 * 10 * 4 + 4)] * 2


def test_budgets_are_those_of_the_global_layers() -> None:
    """Pairs, lengths and kept positions speak of two of the four layers; bytes of all."""
    full = engine_of("gemma2").prefill(PROMPT, {8}).cache
    eviction = Eviction(SNAPKV, Attention(), TokenBudget(20))
    decision = eviction.decide(full)
    smaller = eviction.evict(full, decision)
    assert decision.lengths.tolist() == smaller.lengths.tolist() == [[20, 20]] * 2
    assert len(decision.kept) == 2 and smaller.pairs == 2 * 2 * 20
    assert smaller.bytes_held == 2 * (2 * 2 * 20 + 2 * 2 * 18) * 10 * 4
    assert [layer.lengths for layer in smaller.layers if not layer.evictable] == [(18, 18)] * 2


def test_a_model_of_local_layers_has_nothing_to_evict_unless_no_sequence_outgrows_the_window() -> None:
    reader = engine_of("mistral window")
    cache = reader.prefill(PROMPT, {8}).cache
    assert cache.local_layers == 4
    with pytest.raises(ValueError, match="nothing can be evicted: all 4 layers have a sliding window"):
        Eviction(SNAPKV, Attention(), TokenBudget(20))(cache)
    keep_all = Eviction(Policy("full", accepts=()), Attention(), FractionBudget(parse_budget("1.0").share))
    assert keep_all(cache) is cache and keep_all.decide(cache).lengths.numel() == 0
    for max_length, local in ((20, 4), (19, 0)):
        reader.max_length = max_length
        assert reader.prefill(PROMPT[:15]).cache.local_layers == local


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_oss"])
def test_evidence_is_what_attention_did(family: str) -> None:
    """exp(logits - lse) are the weights whose outputs were recorded; a sink takes its share of them."""
    cache = engine_of(family).prefill(PROMPT, {9}).cache
    for layer in cache.evictable:
        (window,), (keys, values) = layer.windows, layer.dense
        assert window.queries.shape[1] == 9 and window.softcap == (3.0 if family == "gemma2" else None)
        logits = window.queries @ keys.repeat_interleave(3, 0).mT * window.scaling
        if window.softcap is not None:
            logits = window.softcap * torch.tanh(logits / window.softcap)
        unseen = torch.arange(61) > torch.arange(52, 61)[:, None]
        weights = (logits - window.lse[..., None]).exp().masked_fill(unseen, 0)
        assert torch.allclose(weights @ values.repeat_interleave(3, 0), window.outputs, atol=1e-5)
        if family == "gpt_oss":
            assert (weights.sum(-1) < 1).all()
        else:
            assert torch.allclose(weights.sum(-1), torch.ones(6, 9), atol=1e-5)
        received = Attention()(layer, window, "sum")
        assert torch.allclose(received, weights.sum(1), atol=1e-5)
