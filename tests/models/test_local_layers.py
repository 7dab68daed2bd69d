"""Models that mix global and local layers: global ones are evicted, local ones hold their own window alone."""

import pytest
import torch

from kvbench.cache.kv_cache import KVCache, compact
from kvbench.eviction.budget import FractionBudget, TokenBudget, parse_budget
from kvbench.eviction.evict import Eviction
from kvbench.eviction.policy import Policy
from kvbench.eviction.scores.attn import Attention
from kvbench.models import bridge
from kvbench.models.decode.batch import RaggedBatch
from kvbench.models.engine import Engine
from tests.models.families import tiny
from tests.models.masked import masked_forward

HYBRID = ["gemma2", "gemma3", "gpt_oss", "qwen2 window"]
SNAPKV = Policy("snapkv", window=8, recent=8)


def engine(family: str, dtype: torch.dtype = torch.float32, block: int = 13, **changes: object) -> Engine:
    model = tiny(family, dtype, **changes)
    bridge.attach(model)
    return Engine(model, prefill_chunk=block, max_batch=3, max_length=512)


@pytest.fixture
def prompt() -> torch.Tensor:
    """61 random token ids."""
    return torch.randint(3, 97, (61,), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("family", HYBRID)
@pytest.mark.parametrize("heads", [2, 6], ids=["kv_heads", "query_heads"])
def test_compacted_decode_is_a_masked_forward(family: str, heads: int, prompt: torch.Tensor) -> None:
    """The oracle: a forward over the whole sequence with a mask of its own for every head of every global layer."""
    reader, tail = engine(family), torch.tensor([[4, 9, 33, 7, 61, 8], [90, 5, 5, 17, 3, 52]])
    full = reader.prefill(prompt).cache
    kept = [masks(full, seed, heads) for seed in (0, 1)]
    cells = [compact(full, tuple(mask for mask in of_cell if mask is not None)) for of_cell in kept]
    tile = RaggedBatch(cells, reader.max_batch, max_new_tokens=6)
    ids = torch.cat((tail, torch.zeros(reader.max_batch - 2, 6, dtype=torch.long)))
    logits = [reader.read(tile, ids[:, :4]), reader.read(tile, ids[:, 4:5]), reader.read(tile, ids[:, 5:])]
    for cell in (0, 1):
        expected = masked_forward(reader.model, torch.cat((prompt, tail[cell])), len(prompt), kept[cell])[-3:]
        assert (torch.stack([step[cell] for step in logits]) - expected).abs().max() < 1e-4
        without = masked_forward(reader.model, torch.cat((prompt, tail[cell])), len(prompt), [None] * 4)[-3:]
        assert (without - expected).abs().max() > 1e-2, "the masks must matter"


def masks(cache: KVCache, seed: int, heads: int) -> list[torch.Tensor | None]:
    """Ragged random masks of the global layers; one head is empty."""
    generator = torch.Generator().manual_seed(seed)
    layer_masks: list[torch.Tensor | None] = []
    for layer in cache.layers:
        shares = torch.rand(heads, 1, generator=generator)
        mask = torch.rand(heads, cache.num_tokens, generator=generator) < shares
        mask[0] &= layer is not cache.evictable[0]
        layer_masks.append(mask if layer.evictable else None)
    return layer_masks


@pytest.mark.parametrize("block", [1, 13, 61])
def test_a_local_layer_holds_what_later_tokens_can_see(block: int, prompt: torch.Tensor) -> None:
    """With a window of 19 the next token sees 18 of those before it; the rest is really freed."""
    cache = engine("gemma2", block=block).prefill(prompt, {8}).cache
    assert [layer.evictable for layer in cache.layers] == [False, True, False, True]
    for layer in cache.layers:
        held = 61 if layer.evictable else 18
        assert layer.lengths == (held, held)
        assert layer.positions.tolist() == [*range(61 - held, 61)] * 2
        assert layer.keys.untyped_storage().nbytes() == 2 * held * 10 * 4
        assert len(layer.windows) == layer.evictable
    assert cache.local_layers == 2 and cache.pairs == 2 * 2 * 61
    assert cache.bytes_held == 2 * (2 * 2 * 61 + 2 * 2 * 18) * 10 * 4


def test_budgets_are_those_of_the_global_layers(prompt: torch.Tensor) -> None:
    """Pairs, lengths and kept positions speak of two of the four layers; bytes of all."""
    full = engine("gemma2").prefill(prompt, {8}).cache
    eviction = Eviction(SNAPKV, Attention(), TokenBudget(20))
    decision = eviction.decide(full)
    smaller = eviction.evict(full, decision)
    assert decision.lengths.tolist() == smaller.lengths.tolist() == [[20, 20]] * 2
    assert len(decision.kept) == 2 and smaller.pairs == 2 * 2 * 20
    assert smaller.bytes_held == 2 * (2 * 2 * 20 + 2 * 2 * 18) * 10 * 4
    assert [layer.lengths for layer in smaller.layers if not layer.evictable] == [(18, 18)] * 2


def test_a_window_that_no_sequence_outgrows_is_none(prompt: torch.Tensor) -> None:
    """The same layers, read by an engine whose sequences are never longer than the window."""
    reader = engine("mistral window")
    assert reader.prefill(prompt).cache.local_layers == 4
    reader.max_length = 20
    assert reader.prefill(prompt[:15]).cache.local_layers == 4
    reader.max_length = 19
    assert reader.prefill(prompt[:15]).cache.local_layers == 0


def test_a_model_of_local_layers_has_nothing_to_evict(prompt: torch.Tensor) -> None:
    cache = engine("mistral window").prefill(prompt, {8}).cache
    with pytest.raises(ValueError, match="nothing can be evicted: all 4 layers have a sliding window"):
        Eviction(SNAPKV, Attention(), TokenBudget(20))(cache)
    keep_all = Eviction(Policy("full", accepts=()), Attention(), FractionBudget(parse_budget("1.0").share))
    assert keep_all(cache) is cache and keep_all.decide(cache).lengths.numel() == 0


@pytest.mark.parametrize("family", ["gemma2", "gpt_oss"])
def test_evidence_is_what_attention_did(family: str, prompt: torch.Tensor) -> None:
    """exp(logits - lse) are the weights whose outputs were recorded; a sink takes its share of them."""
    cache = engine(family).prefill(prompt, {9}).cache
    for layer in cache.evictable:
        (window,), (keys, values) = layer.windows, layer.dense
        logits = window.queries @ keys.repeat_interleave(3, 0).mT * window.scaling
        if window.softcap is not None:
            logits = window.softcap * torch.tanh(logits / window.softcap)
        unseen = torch.arange(61) > torch.arange(52, 61)[:, None]
        weights = (logits - window.lse[..., None]).exp().masked_fill(unseen, 0)
        assert torch.allclose(weights @ values.repeat_interleave(3, 0), window.outputs, atol=1e-5)
        if family == "gpt_oss":
            assert (weights.sum(-1) < 1).all()
        else:
            assert torch.allclose(weights.sum(-1), torch.ones(6, 9), atol=1e-5) and window.softcap == 3.0
        received = Attention()(layer, window, "sum")
        assert torch.allclose(received, weights.sum(1), atol=1e-5)
